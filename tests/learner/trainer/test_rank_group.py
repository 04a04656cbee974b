"""How rank 0 holds the other processes; none of them loads anything here."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest

from echo2swarm.system.errors import DiskFullError, StoreError
from learner.trainer import rank_group as gang_module
from learner.trainer.rank_group import RankGroup
from learner.trainer.rank_messages import CopyState
from tests.processes import is_running

pytestmark = pytest.mark.processes
LIMIT_S = 120.0
TOO_EARLY = CopyState(number=0)
"""Every rank refuses this before it has joined."""


class LostError(Exception):
    """What stands for the end of this process."""


class Losses:
    """Notes why the gang would have ended this process."""

    def __init__(self) -> None:
        self.first: str | None = None
        self._noted = threading.Event()

    def __call__(self, why: str) -> NoReturn:
        self.first = self.first or why
        self._noted.set()
        raise LostError(why)

    def wait(self) -> str:
        assert self._noted.wait(LIMIT_S)
        assert self.first is not None
        return self.first


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    # It is raised in threads, too, where nobody is to catch it.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    return Losses()


@pytest.fixture
def gang(losses: Losses, monkeypatch: pytest.MonkeyPatch) -> Iterator[RankGroup]:
    # On a busy machine one process may answer long before another has begun.
    monkeypatch.setattr(gang_module, "DISAGREEMENT_S", LIMIT_S)
    gang = RankGroup(3, on_loss=losses)
    yield gang
    gang.close()


def refuse() -> NoReturn:
    raise ValueError("as the others do")


def test_what_all_refuse_is_raised_and_changes_nothing(gang: RankGroup, losses: Losses) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="as the others do"):
            gang.do(refuse, TOO_EARLY)

    assert losses.first is None
    assert all(is_running(pid) for pid in gang.pids)


def test_a_failure_that_rank_0_does_not_share_ends_all(gang: RankGroup) -> None:
    with pytest.raises(LostError, match=r"process [12] of the trainer failed: ValueError: Copy"):
        gang.do(lambda: 1, TOO_EARLY)


def test_a_failure_while_rank_0_waits_for_the_others_ends_all(
    gang: RankGroup, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "DISAGREEMENT_S", 0.1)

    def stuck() -> None:
        losses.wait()

    with pytest.raises(LostError):
        gang.do(stuck, TOO_EARLY)


def test_a_failure_that_concerns_the_call_alone_is_told(gang: RankGroup, losses: Losses) -> None:
    error = gang.tell(TOO_EARLY).wait()

    assert isinstance(error, StoreError)
    assert not isinstance(error, DiskFullError)
    assert losses.first is None


def test_a_process_that_dies_is_noticed_and_named(gang: RankGroup, losses: Losses) -> None:
    os.kill(gang.pids[1], signal.SIGKILL)

    assert losses.wait() == "process 2 of the trainer was killed by SIGKILL"


def test_closing_leaves_no_process(losses: Losses) -> None:
    gang = RankGroup(3, on_loss=losses)
    pids = gang.pids

    gang.close()

    assert losses.first is None
    assert not any(is_running(pid) for pid in pids)


def test_no_process_outlives_a_rank_0_that_is_killed() -> None:
    code = (
        "import time; from learner.trainer.rank_group import RankGroup; "
        "print(*RankGroup(3).pids, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as rank_0:
        assert rank_0.stdout is not None
        pids = [int(pid) for pid in rank_0.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        rank_0.kill()

    deadline_s = time.monotonic() + LIMIT_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
