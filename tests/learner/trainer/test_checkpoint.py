"""Checkpoints: resuming is as if nothing had happened; half a checkpoint is none."""

from pathlib import Path

import msgspec
import pytest
import torch

from echo2swarm.system.errors import StoreError
from learner.trainer.checkpoint import load_checkpoint
from learner.trainer.folders import STATE, new_folder, read_state
from learner.trainer.messages import Start
from learner.trainer.ranks import Ranks
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.weights import model_tensors
from learner.trainer.worker import load_trainer
from tests.echo2swarm.full_disk import full_disk
from tests.learner.trainer.model_inputs import random_groups, start

pytestmark = pytest.mark.model


def trainer_of(call: Start) -> PolicyTrainer:
    trainer = load_trainer(call)
    assert isinstance(trainer, PolicyTrainer)
    return trainer


def silent(what: str, done: float, total: float) -> None:
    pass


def assert_same(one: PolicyTrainer, other: PolicyTrainer) -> None:
    assert one.step == other.step
    for name, tensor in model_tensors(one._model).items():
        assert torch.equal(tensor, model_tensors(other._model)[name]), name


def test_a_resumed_trainer_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    trainer = trainer_of(start())
    for step in range(2):
        trainer.update(step, random_groups(step), silent)
    trainer.copy_state()(tmp_path / "saved")

    resumed = trainer_of(start(checkpoint_dir=str(tmp_path / "saved")))
    assert_same(resumed, trainer)
    assert resumed.started().step == 2
    for step in range(2, 4):
        metrics = trainer.update(step, random_groups(step), silent).metrics
        other = resumed.update(step, random_groups(step), silent).metrics
        assert metrics["grad_norm"] == other["grad_norm"]

    assert_same(resumed, trainer)


def test_a_fresh_optimizer_remembers_nothing_of_earlier_updates(tmp_path: Path) -> None:
    trainer = trainer_of(start())
    for step in range(2):
        trainer.update(step, random_groups(step), silent)
    trainer.copy_state()(tmp_path / "saved")
    going_on = start(checkpoint_dir=str(tmp_path / "saved"))

    fresh = trainer_of(msgspec.structs.replace(going_on, fresh_optimizer=True))

    assert_same(fresh, trainer)  # the weights and the step
    assert trainer._optimizer.state
    assert not fresh._optimizer.state
    one, other = (t.update(2, random_groups(2), silent).metrics for t in (trainer, fresh))
    assert one["grad_norm"] == other["grad_norm"]
    assert any(
        not torch.equal(tensor, model_tensors(fresh._model)[name])
        for name, tensor in model_tensors(trainer._model).items()
    )


def test_the_learning_rate_warms_up_from_where_the_optimizer_was_new(tmp_path: Path) -> None:
    begin = start(learning_rate=4.0e-3, warmup_steps=4)
    trainer = trainer_of(begin)
    for step in range(3):
        trainer.update(step, random_groups(step), silent)
    trainer.copy_state()(tmp_path / "saved")
    forked = msgspec.structs.replace(
        begin, checkpoint_dir=str(tmp_path / "saved"), fresh_optimizer=True, warmup_from=3
    )
    fresh = trainer_of(forked)
    rates = [
        fresh.update(step, random_groups(step), silent).metrics["learning_rate"]
        for step in range(3, 5)
    ]
    fresh.copy_state()(tmp_path / "later")
    # A later start of the same fork: not fresh any more, and in the same warm-up.
    later = trainer_of(
        msgspec.structs.replace(
            forked, checkpoint_dir=str(tmp_path / "later"), fresh_optimizer=False
        )
    )
    rates += [
        later.update(step, random_groups(step), silent).metrics["learning_rate"]
        for step in range(5, 8)
    ]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3])


def test_a_checkpoint_before_the_first_update_is_one_too(tmp_path: Path) -> None:
    trainer_of(start()).copy_state()(tmp_path / "saved")

    assert_same(trainer_of(start(checkpoint_dir=str(tmp_path / "saved"))), trainer_of(start()))


def test_an_existing_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    trainer = trainer_of(start())
    trainer.copy_state()(tmp_path / "saved")

    with pytest.raises(StoreError, match="saved exists"):
        trainer.copy_state()(tmp_path / "saved")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", STATE])
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_a_damaged_checkpoint_is_ignored_and_refused(
    tmp_path: Path, name: str, damage: str
) -> None:
    trainer = trainer_of(start())
    for step in range(2):
        trainer.copy_state()(tmp_path / f"step-{step}")
        trainer.update(step, random_groups(step), silent)
    newest = tmp_path / "step-1"
    data = (newest / name).read_bytes()
    (newest / name).unlink()
    if damage == "cut short":
        (newest / name).write_bytes(data[: len(data) // 2])

    assert read_state(newest) is None
    assert read_state(tmp_path / "step-0") is not None
    with pytest.raises(StoreError, match="not complete"):
        trainer_of(start(checkpoint_dir=str(newest)))


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trainer_of(start()).copy_state()(tmp_path / "saved")
    other = trainer_of(start())
    other._model.get_submodule("model.layers")[0].mlp.register_parameter(  # type: ignore[index]
        "extra", torch.nn.Parameter(torch.zeros(1))
    )

    with pytest.raises(StoreError, match="not those of this model"):
        load_checkpoint(tmp_path / "saved", other._model, other._optimizer, Ranks())


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "a") as partial:
            (partial / "file").write_bytes(b"1")
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match=r"can't write .*/a: .*No space left.*free some"):
        fail()

    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails_the_checkpoint_and_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    trainer = trainer_of(start())
    trainer.update(0, random_groups(0), silent)

    with full_disk(after_bytes=100_000), pytest.raises(StoreError, match=r"can't write .*saved"):
        trainer.copy_state()(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []

    trainer.copy_state()(tmp_path / "saved")
    assert_same(trainer_of(start(checkpoint_dir=str(tmp_path / "saved"))), trainer)


def test_what_a_dead_process_left_half_written_is_replaced(tmp_path: Path) -> None:
    leftover = tmp_path / ".a.partial"
    leftover.mkdir()
    (leftover / "old").write_bytes(b"1")

    with new_folder(tmp_path / "a") as partial:
        (partial / "new").write_bytes(b"2")

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["new"]
