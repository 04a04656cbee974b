"""Which checkpoint a run goes on from: the newest that is whole and leads on, or none at all."""

from pathlib import Path

import pytest
import structlog

from learner.ledger.ledger import open_ledger
from learner.ledger.meta import FORGOTTEN_BEFORE, set_meta
from learner.ledger.resume import Reach
from learner.run.checkpoint_store import Checkpoint, Position
from learner.run.run_dir import RunDir
from learner.training.resume import NoWayBackError, choose, choose_checkpoint, tell_if_done
from protocols.ids import RunId
from tests.learner.run.test_checkpoint_store import flip_a_bit, save

RUN = RunId("run-1")


def at(step: int) -> Checkpoint:
    return Checkpoint(
        Position(run_id=RUN, step=step, saved_unix_s=0.0, files={}), Path(f"step-{step}")
    )


def whole(_checkpoint: Checkpoint) -> None:
    return None


def test_the_newest_whole_one_is_taken() -> None:
    reach = Reach(first_step=0, oldest_step=10, step=25)

    choice = choose([at(10), at(20)], reach, damage_of=whole)

    assert (choice.checkpoint, choice.passed_over) == (at(20), ())


def test_a_damaged_one_is_passed_over_with_the_reason() -> None:
    reach = Reach(first_step=0, oldest_step=10, step=25)

    choice = choose(
        [at(10), at(20)], reach, damage_of=lambda c: "its hash differs" if c.step == 20 else None
    )

    assert choice.checkpoint == at(10)
    assert [(p.checkpoint.step, p.why) for p in choice.passed_over] == [(20, "its hash differs")]


def test_one_that_the_ledger_does_not_know_is_passed_over() -> None:
    reach = Reach(first_step=0, oldest_step=0, step=15)

    choice = choose([at(10), at(20)], reach, damage_of=whole)

    assert choice.checkpoint == at(10)
    assert "knows only 15 updates" in choice.passed_over[0].why


def test_a_run_without_checkpoints_goes_on_from_the_beginning_if_all_can_be_made_again() -> None:
    assert (
        choose([], Reach(first_step=0, oldest_step=0, step=7), damage_of=whole).checkpoint is None
    )


def test_a_run_never_starts_silently_at_the_beginning() -> None:
    reach = Reach(first_step=0, oldest_step=10, step=25)

    with pytest.raises(NoWayBackError) as caught:
        choose([at(10), at(20)], reach, damage_of=lambda _: "it is damaged")

    assert "step 20: it is damaged; step 10: it is damaged" in str(caught.value)
    assert "from the beginning: the rollouts of updates 1 to 10" in str(caught.value)


def test_a_fork_does_not_begin_again_at_zero() -> None:
    with pytest.raises(NoWayBackError, match="forked from a checkpoint"):
        choose([], Reach(first_step=50, oldest_step=50, step=50), damage_of=whole)


def test_a_run_that_has_all_its_steps_is_told_how_to_go_on() -> None:
    with structlog.testing.capture_logs() as events:
        tell_if_done(99, num_steps=100)
        assert events == []
        tell_if_done(100, num_steps=100)

    assert "--set run.num_steps=N" in events[0]["next"]


async def test_files_are_read_to_the_last_byte_and_what_is_damaged_is_set_aside(
    tmp_path: Path,
) -> None:
    run_dir = RunDir(tmp_path, RUN)
    flip_a_bit(save(run_dir.checkpoints, 0).folder / "trainer" / "model.safetensors")
    async with open_ledger(run_dir.ledger, run_id=RUN, max_staleness=1) as ledger:
        with structlog.testing.capture_logs() as logs:
            chosen = await choose_checkpoint(run_dir, ledger)

    assert chosen is None  # nothing was done yet: the beginning is as good
    (told,) = [entry for entry in logs if entry["event"] == "checkpoint.passed_over"]
    assert told["step"] == 0
    assert "its hash differs" in told["why"]
    assert run_dir.checkpoints.all() == []


async def test_when_nothing_can_be_gone_on_from_it_is_said_what_to_do(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path, RUN)
    save(run_dir.checkpoints, 5)
    async with open_ledger(run_dir.ledger, run_id=RUN, max_staleness=1) as ledger:
        with ledger._connection:
            set_meta(ledger._connection, FORGOTTEN_BEFORE, "5")

        with pytest.raises(NoWayBackError, match=f"echo2-learner fork {tmp_path}"):
            await choose_checkpoint(run_dir, ledger)

    assert [c.step for c in run_dir.checkpoints.all()] == [5], "nothing is set aside in vain"
