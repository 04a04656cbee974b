"""Waiting for processes to end."""

import subprocess
import sys

import pytest
import trio
import trio.testing

from echo2swarm.processes import exits
from echo2swarm.processes.exits import wait_exited, wait_pid_gone


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


@pytest.mark.parametrize("has_pidfd", [True, False])
async def test_who_waits_for_a_child_wakes_when_it_has_ended(
    has_pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "_HAS_PIDFD", has_pidfd)
    with sleeper() as child:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_exited, child)
                await trio.sleep(0.05)
                assert child.poll() is None
                child.kill()

        assert child.returncode == -9
        await wait_exited(child)  # returns at once from now on


async def test_a_wait_for_a_child_can_be_given_up() -> None:
    with sleeper() as child:
        with trio.move_on_after(0.05) as scope:
            await wait_exited(child)
        assert scope.cancelled_caught
        assert child.poll() is None
        child.kill()


async def test_a_process_that_is_no_more_is_not_waited_for() -> None:
    with sleeper() as child:
        child.kill()
    with trio.fail_after(60):
        await wait_pid_gone(child.pid)
