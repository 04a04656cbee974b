"""Child processes: real ones, of plain Python."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from echo2swarm.processes import parent
from echo2swarm.processes.parent import Child, open_child
from echo2swarm.processes.wire import CallProgress
from echo2swarm.processes.worker import CallCancelledError, Cancellations
from echo2swarm.system.errors import ChildError
from protocols.framing import frame
from tests.echo2swarm.processes.async_sample_child import NUM_CANCELLED, NUM_SLEPT
from tests.echo2swarm.processes.sample_child import (
    Add,
    Exit,
    Fail,
    FailAsExpected,
    Sleep,
    SleepUntilCancelled,
    StartOther,
    Sum,
)
from tests.processes import is_running

MODULE = "tests.echo2swarm.processes.sample_child"
ASYNC_MODULE = "tests.echo2swarm.processes.async_sample_child"


@pytest.fixture(params=[MODULE, ASYNC_MODULE], ids=["in turn", "at once"])
def module(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_a_call_is_answered_with_progress_on_the_way(module: str) -> None:
    seen: list[CallProgress] = []

    async with open_child(module, name="adder") as child:
        answer = await child.call(Add(2, 3), Sum, timeout_s=120, on_progress=seen.append)

    assert answer == Sum(5)
    assert seen == [CallProgress("adding", 1, 1)]


async def test_a_failed_call_says_why_and_the_child_lives_on(module: str, tmp_path: Path) -> None:
    async with open_child(module, name="adder", log_path=tmp_path / "log") as child:
        with pytest.raises(ChildError, match="adder: ValueError: no such sum"):
            await child.call(Fail("no such sum"), Sum, timeout_s=120)

        assert await child.call(Add(1, 1), Sum, timeout_s=120) == Sum(2)


@pytest.mark.parametrize("shows_tracebacks", [False, True])
async def test_an_error_to_be_expected_has_its_traceback_in_the_log_or_where_asked_for(
    module: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], shows_tracebacks: bool
) -> None:
    log = tmp_path / "log"
    for log_path in (log, None):
        async with open_child(
            module, name="adder", log_path=log_path, shows_tracebacks=shows_tracebacks
        ) as child:
            with pytest.raises(ChildError, match="adder: StoreError: no such sum"):
                await child.call(FailAsExpected("no such sum"), Sum, timeout_s=120)

    assert "Traceback" in log.read_text()
    assert ("Traceback" in capfd.readouterr().err) is shows_tracebacks


async def test_a_bug_has_its_traceback_everywhere(
    module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_child(module, name="adder") as child:
        with pytest.raises(ChildError):
            await child.call(Fail("no such sum"), Sum, timeout_s=120)

    assert "Traceback" in capfd.readouterr().err


async def test_a_failure_is_told_though_its_log_can_not_be_written(module: str) -> None:
    async with open_child(module, name="adder", log_path=Path("/dev/full")) as child:
        with pytest.raises(ChildError, match="adder: ValueError: no such sum"):
            await child.call(Fail("no such sum"), Sum, timeout_s=120)


async def test_the_death_of_the_child_fails_all_pending_calls(module: str, tmp_path: Path) -> None:
    failed: list[str] = []

    async def call(message: Sleep) -> None:
        try:
            await child.call(message, Sum)
        except ChildError as exc:
            failed.append(str(exc))

    async with open_child(module, name="sleeper", log_path=tmp_path / "log") as child:
        assert await child.call(Add(0, 0), Sum, timeout_s=120) == Sum(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, Sleep(3600))
            nursery.start_soon(call, Sleep(3600))
            await trio.testing.wait_all_tasks_blocked()
            os.kill(child.pid, signal.SIGKILL)
        await child.wait_dead()
        with pytest.raises(ChildError):
            await child.call(Add(1, 1), Sum)

    assert len(failed) == 2
    assert all("sleeper" in message for message in failed)


async def test_the_exit_status_is_told(module: str, tmp_path: Path) -> None:
    async with open_child(module, name="quitter", log_path=tmp_path / "log") as child:
        with pytest.raises(ChildError, match="quitter"):
            await child.call(Exit(7), Sum, timeout_s=120)


async def test_a_call_over_its_time_is_an_error_and_later_calls_get_their_own_answers() -> None:
    async with open_child(MODULE, name="sleeper") as child:
        with pytest.raises(ChildError, match=r"did not answer Sleep within 0\.1 s"):
            await child.call(Sleep(0.5), Sum, timeout_s=0.1)

        assert await child.call(Add(2, 2), Sum, timeout_s=120) == Sum(4)


async def begin_and_cancel(child: Child, *, num: int = 1) -> None:
    """Make calls that end by being cancelled alone; more than one only where they overlap."""
    async with trio.open_nursery() as nursery:
        events = [trio.Event() for _ in range(num)]
        for event in events:
            nursery.start_soon(
                partial(
                    child.call, SleepUntilCancelled(), Sum, on_progress=partial(set_event, event)
                )
            )
        for event in events:
            await event.wait()
        nursery.cancel_scope.cancel()


def set_event(event: trio.Event, _progress: CallProgress) -> None:
    event.set()


async def test_a_child_that_looks_ends_a_call_that_nobody_waits_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_child(MODULE, name="sleeper", log_path=log) as child:
        for _ in range(2):
            await begin_and_cancel(child)
            assert await child.call(Add(2, 2), Sum, timeout_s=120) == Sum(4)
        with trio.move_on_after(0.3) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.call, SleepUntilCancelled(), Sum)
                await trio.testing.wait_all_tasks_blocked()
                # Not before the other has ended, and nobody has cancelled that.
                await child.call(Add(2, 2), Sum)
        assert scope.cancelled_caught

    assert "Traceback" not in log.read_text()


async def test_a_call_that_was_cancelled_before_its_turn_is_not_begun(tmp_path: Path) -> None:
    async with open_child(MODULE, name="sleeper", log_path=tmp_path / "log") as child:
        begun = trio.Event()
        on_progress = partial(set_event, begun)
        async with trio.open_nursery() as nursery:
            for _ in range(2):  # whichever comes first is begun
                nursery.start_soon(
                    partial(child.call, SleepUntilCancelled(), Sum, on_progress=on_progress)
                )
            await begun.wait()
            nursery.cancel_scope.cancel()

        assert await child.call(Add(2, 2), Sum, timeout_s=120) == Sum(4)


async def test_an_event_loop_cancels_the_call_that_nobody_waits_for_and_no_other(
    tmp_path: Path,
) -> None:
    async with open_child(ASYNC_MODULE, name="adder", log_path=tmp_path / "log") as child:
        answers: list[Sum] = []

        async def sleep_a_little() -> None:
            answers.append(await child.call(Sleep(1.0), Sum))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep_a_little)
            await begin_and_cancel(child, num=3)
            async with trio.open_nursery() as impatient:
                impatient.start_soon(child.call, Sleep(0.5), Sum)
                await trio.testing.wait_all_tasks_blocked()  # It is sent by now.
                impatient.cancel_scope.cancel()
            num_ended = await child.call(Add(NUM_CANCELLED, 0), Sum, timeout_s=120)
        # What is not to be cancelled goes on though nobody waits.
        while (await child.call(Add(NUM_SLEPT, 0), Sum, timeout_s=120)).value < 2:  # noqa: ASYNC110
            await trio.sleep(0.01)

    assert num_ended == Sum(3)
    assert answers == [Sum(0)]


def test_a_cancellation_is_of_one_call_and_forgotten_with_it() -> None:
    cancellations = Cancellations()
    for call_id in (1, 2):
        cancellations.came(call_id)
    cancellations.cancel(1)
    cancellations.cancel(7)

    with cancellations.working_on(2):
        cancellations.check()
    with cancellations.working_on(1), pytest.raises(CallCancelledError):
        cancellations.check()
    cancellations.check()
    cancellations.cancel(1)
    for call_id in (1, 7):
        cancellations.came(call_id)
        with cancellations.working_on(call_id):
            cancellations.check()


async def test_leaving_the_context_ends_a_busy_child_and_its_tasks(
    module: str, tmp_path: Path
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with open_child(module, name="sleeper", log_path=tmp_path / "log") as child:
        await child.call(Add(0, 0), Sum, timeout_s=120)
        with trio.move_on_after(0.2):
            await child.call(Sleep(3600), Sum)
        pid = child.pid

    assert not is_running(pid)
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_calls_are_worked_on_at_once_where_the_child_can() -> None:
    answers: list[Sum] = []

    async with open_child(ASYNC_MODULE, name="adder") as child, trio.open_nursery() as nursery:

        async def sleep() -> None:
            answers.append(await child.call(Sleep(3600), Sum))

        nursery.start_soon(sleep)
        await trio.testing.wait_all_tasks_blocked()
        assert await child.call(Add(2, 3), Sum, timeout_s=120) == Sum(5)
        nursery.cancel_scope.cancel()

    assert not answers


async def test_a_child_that_takes_nothing_keeps_nobody_waiting(module: str, tmp_path: Path) -> None:
    too_much = Fail("x" * 4_000_000)  # for what a socket holds
    with trio.fail_after(60):
        async with open_child(module, name="adder", log_path=tmp_path / "log") as child:
            await child.call(Add(0, 0), Sum, timeout_s=120)
            os.kill(child.pid, signal.SIGSTOP)
            for message in (too_much, too_much, Add(1, 1)):
                with pytest.raises(ChildError, match=r"did not answer \w+ within 0\.1 s"):
                    await child.call(message, Sum, timeout_s=0.1)
            os.kill(child.pid, signal.SIGCONT)
            assert await child.call(Add(2, 2), Sum, timeout_s=120) == Sum(4)
            os.kill(child.pid, signal.SIGSTOP)
            with trio.move_on_after(0.1):
                await child.call(too_much, Sum)
            pid = child.pid

    assert not is_running(pid)


async def test_a_message_that_no_frame_can_hold_is_an_error_and_the_child_lives_on(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "MAX_FRAME_BYTES", 1000)
    async with open_child(module, name="adder", log_path=tmp_path / "log") as child:
        with pytest.raises(ChildError, match=r"adder can't be given \d+ bytes at once") as caught:
            await child.call(Fail("x" * 1000), Sum)

        assert caught.value.error, "it is not lost"
        assert await child.call(Add(2, 2), Sum, timeout_s=30) == Sum(4)


async def test_a_child_that_can_not_read_its_calls_ends(module: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with trio.fail_after(60):
        async with open_child(module, name="adder", log_path=log) as child:
            assert await child.call(Add(2, 2), Sum, timeout_s=30) == Sum(4)
            await child._stream.send_all(frame(b"no call"))
            await child.wait_dead()

    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("how", ["leave", "kill", "die"])
async def test_what_a_child_has_started_ends_with_it(module: str, how: str, tmp_path: Path) -> None:
    async with open_child(module, name="starter", log_path=tmp_path / "log") as child:
        other = (await child.call(StartOther(), Sum, timeout_s=120)).value
        assert is_running(other)
        if how == "kill":
            child.kill()
            await child.wait_dead()
        elif how == "die":
            with pytest.raises(ChildError):
                await child.call(Exit(1), Sum, timeout_s=120)
        if how != "leave":
            await until_ended(other)

    await until_ended(other)


async def until_ended(pid: int) -> None:
    with trio.fail_after(120):
        while is_running(pid):  # noqa: ASYNC110
            await trio.sleep(0.02)


@pytest.mark.processes
def test_a_child_does_not_outlive_a_parent_that_was_killed(module: str, tmp_path: Path) -> None:
    script = f"""
import trio
from echo2swarm.processes import parent
from echo2swarm.processes.parent import Child, open_child
from tests.echo2swarm.processes.sample_child import Sleep, StartOther, Sum
async def main():
    async with open_child({module!r}, name="sleeper") as child:
        other = await child.call(StartOther(), Sum)
        print(child.pid, other.value, flush=True)
        await child.call(Sleep(3600), Sum)
trio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        parent.kill()
        parent.wait()

    assert len(pids) == 2
    for _ in range(2400):
        if not any(map(is_running, pids)):
            break
        signal.sigtimedwait([], 0.05)
    assert not any(map(is_running, pids))


async def test_a_child_that_the_system_killed_is_said_to_have_been_out_of_memory(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    async with open_child(module, name="eater", log_path=log) as child:
        await child.call(Add(1, 1), Sum)
        log.write_text("first\nsecond\nthird\nfourth\n")
        # As if the system had done it, and counted it.
        monkeypatch.setattr("echo2swarm.processes.parent.num_oom_kills", lambda: 1 << 60)
        os.kill(child.pid, signal.SIGKILL)
        await child.wait_dead()
        with pytest.raises(ChildError) as caught:
            await child.call(Add(1, 1), Sum)

    assert "killed by SIGKILL by the system: out of memory" in str(caught.value)
    assert "(last lines: second | third | fourth)" in str(caught.value)


async def test_a_child_that_we_killed_is_not_said_to_have_lacked_memory(module: str) -> None:
    async with open_child(module, name="ours") as child:
        child.kill()
        await child.wait_dead()
        with pytest.raises(ChildError, match=r"^ours was killed by SIGKILL$"):
            await child.call(Add(1, 1), Sum)
