import secrets
import signal
from pathlib import Path

import trio

from learner.demo.process import (
    TAG_VARIABLE,
    SwarmProcess,
    start_process,
    stop_processes,
    tagged_pids,
)

TAG = secrets.token_hex(8)
"""Not that of a run of these tests beside this one."""
SLEEPER = "tests.learner.demo.sleeper"


async def start(tmp_path: Path, *arguments: str) -> SwarmProcess:
    process = await start_process(
        SLEEPER,
        arguments,
        name="sleeper",
        log_path=tmp_path / "log",
        env={TAG_VARIABLE: TAG, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    with trio.fail_after(120):
        while "ready" not in process.log_tail():  # noqa: ASYNC110 - it is a file
            await trio.sleep(0.05)
    return process


async def test_a_process_that_heeds_an_interrupt_is_not_killed(tmp_path: Path) -> None:
    process = await start(tmp_path)

    ending = await stop_processes([process], tag=TAG, grace_s=60)

    assert process.exit_status == 130
    assert ending.killed == ()
    assert ending.num_orphans == 0


async def test_a_process_that_ignores_interrupts_is_killed(tmp_path: Path) -> None:
    process = await start(tmp_path, "--deaf")

    ending = await stop_processes([process], tag=TAG, grace_s=0.3)

    assert process.exit_status == -signal.SIGKILL
    assert ending.killed == ("sleeper",)


async def test_what_a_killed_process_leaves_behind_is_found_and_ended(tmp_path: Path) -> None:
    process = await start(tmp_path, "--with-child")
    process.kill()
    await process.wait()
    assert len(tagged_pids(TAG)) == 1

    ending = await stop_processes([process], tag=TAG, grace_s=0.3)

    assert ending.num_orphans == 1
    assert tagged_pids(TAG) == []


async def test_stopping_what_has_ended_does_nothing(tmp_path: Path) -> None:
    process = await start(tmp_path)
    await stop_processes([process], tag=TAG, grace_s=60)

    ending = await stop_processes([process], tag=TAG, grace_s=60)

    assert ending.killed == ()
    assert process.exit_status == 130
