"""A trainer of several processes: it does what one does, and no process outlives the others.

Rank 0 of most tests is the process of the tests itself, which has torch loaded.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from safetensors.torch import load_file

from echo2swarm.processes.parent import open_child
from echo2swarm.system.errors import ChildError, StoreError
from learner.trainer.messages import (
    Start,
    Started,
    Update,
    Updated,
    WriteWeights,
    WroteWeights,
)
from learner.trainer.multi_rank_trainer import MultiRankTrainer
from learner.trainer.sharding import local, rows
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.weights import model_tensors
from learner.trainer.worker import load_trainer
from tests.echo2swarm.full_disk import full_disk
from tests.learner.trainer.model_inputs import group, random_groups, rollout, start

pytestmark = [pytest.mark.model, pytest.mark.processes]
LIMIT_S = 120.0
OPTIONS: dict[str, Any] = {
    "warmup_steps": 0,
    # Weights are rounded, put back and changed several times an update, and what was gathered of
    # them before must not be used after.
    "publish_dtype": "bfloat16",
    "minibatches": 2,
    "kl_coefficient": 0.1,
    "micro_batch_tokens": 24,
    "threads": 1,
}
BAD = group(7, [1, 11], [rollout([1], [float("inf")], reward=1.0)])


def silent(what: str, done: float, total: float) -> None:
    pass


def call(*, num_processes: int, checkpoint_dir: Path | None = None) -> Start:
    folder = None if checkpoint_dir is None else str(checkpoint_dir)
    return start(checkpoint_dir=folder, num_processes=num_processes, **OPTIONS)


def alone(checkpoint_dir: Path | None = None) -> PolicyTrainer:
    trainer = load_trainer(call(num_processes=1, checkpoint_dir=checkpoint_dir))
    assert isinstance(trainer, PolicyTrainer)
    return trainer


def open_gang(checkpoint_dir: Path | None = None) -> MultiRankTrainer:
    trainer = load_trainer(call(num_processes=2, checkpoint_dir=checkpoint_dir))
    assert isinstance(trainer, MultiRankTrainer)
    return trainer


@pytest.fixture(scope="module")
def gang() -> Iterator[MultiRankTrainer]:
    trainer = open_gang()
    yield trainer
    trainer.close()


def written(trainer: PolicyTrainer | MultiRankTrainer, folder: Path) -> dict[str, torch.Tensor]:
    assert trainer.write_weights(folder) == ["model.safetensors"]
    return load_file(folder / "model.safetensors")


def values(trainer: PolicyTrainer, key: str) -> dict[str, torch.Tensor]:
    """What the optimizer of the only process knows of each parameter."""
    return {
        name: trainer._optimizer.state[parameter][key].clone()
        for name, parameter in trainer._model.named_parameters()
    }


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_two_processes_train_as_one_does(gang: MultiRankTrainer, tmp_path: Path) -> None:
    one = alone()
    for step in range(3):
        groups = random_groups(step, num_groups=3 + step, equal=(1,))
        expected = one.update(step, groups, silent)
        found = gang.update(step, groups, silent)
        assert found.step == expected.step
        assert found.drift_by_peer.keys() == expected.drift_by_peer.keys()
        for peer, drift in expected.drift_by_peer.items():
            assert found.drift_by_peer[peer] == pytest.approx(drift, rel=1e-4)
        for name, value in expected.metrics.items():
            if name.endswith(("_s", "_bytes", "_computed", "_longest")):
                continue
            assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    gang.copy_state()(tmp_path / "saved")
    two = alone(tmp_path / "saved")
    assert largest_difference(model_tensors(one._model), model_tensors(two._model)) < 1e-5
    # The running mean of gradients.
    assert largest_difference(values(one, "exp_avg"), values(two, "exp_avg")) < 1e-5


def test_what_one_process_refuses_all_refuse_and_go_on(
    gang: MultiRankTrainer, tmp_path: Path
) -> None:
    before = written(gang, tmp_path / "before")

    with pytest.raises(ValueError, match="group 7"):
        gang.update(gang.step, (BAD,), silent)
    with pytest.raises(StoreError, match="exists"):
        gang.write_weights(tmp_path / "before")

    assert_same(written(gang, tmp_path / "after"), before)


def test_a_full_disk_leaves_no_weights_and_a_trainer_that_works(
    gang: MultiRankTrainer, tmp_path: Path
) -> None:
    with full_disk(after_bytes=100_000), pytest.raises(StoreError, match="can't write"):
        gang.write_weights(tmp_path / "weights")
    assert list(tmp_path.iterdir()) == []

    written(gang, tmp_path / "weights")


def test_one_process_goes_on_from_the_checkpoint_of_two(
    gang: MultiRankTrainer, tmp_path: Path
) -> None:
    gang.update(gang.step, random_groups(5), silent)
    gang.copy_state()(tmp_path / "saved")
    at_checkpoint = written(gang, tmp_path / "at_checkpoint")

    one = alone(tmp_path / "saved")

    assert one.step == gang.step
    assert_same(written(one, tmp_path / "one"), at_checkpoint)
    for name, parameter in gang._trainer._model.named_parameters():
        here = gang._trainer._optimizer.state[parameter]
        start_row, stop_row = rows(parameter, gang._trainer._ranks)
        for key in ("exp_avg", "exp_avg_sq"):
            resumed = values(one, key)[name]
            assert stop_row - start_row < len(resumed), "every parameter has rows on both ranks"
            assert torch.equal(local(here[key]), resumed[start_row:stop_row]), name
        assert float(here["step"]) == float(values(one, "step")[name]) > 0


def test_a_checkpoint_is_written_while_training_goes_on(
    gang: MultiRankTrainer, tmp_path: Path
) -> None:
    write = gang.copy_state()
    step, before = gang.step, written(gang, tmp_path / "before")
    gang.update(step, random_groups(8), silent)
    write(tmp_path / "saved")

    one = alone(tmp_path / "saved")

    assert one.step == step
    assert_same(written(one, tmp_path / "one"), before)


def test_a_full_disk_leaves_no_checkpoint_and_a_trainer_that_works(
    gang: MultiRankTrainer, tmp_path: Path
) -> None:
    write = gang.copy_state()
    with full_disk(after_bytes=10_000), pytest.raises(StoreError):
        write(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []

    gang.copy_state()(tmp_path / "saved")
    assert alone(tmp_path / "saved").step == gang.step


def test_one_process_alone_makes_and_deletes_folders(
    gang: MultiRankTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".saved.partial"
    left.mkdir()
    (left / "rank-00001-of-00003.model.safetensors").write_bytes(b"of a process that died")
    (left / "rank-00003-of-00003.model.safetensors").write_bytes(b"of a process that died")

    gang.copy_state()(tmp_path / "saved")

    names = {path.name for path in (tmp_path / "saved").iterdir()}
    kinds = ("exp_avg", "exp_avg_sq", "model", "step")
    expected = {f"rank-00001-of-00002.{kind}.safetensors" for kind in kinds}
    expected |= {f"rank-00002-of-00002.{kind}.safetensors" for kind in kinds if kind != "step"}
    assert names == expected | {"optimizer.safetensors", "state.json"}


async def test_two_processes_go_on_from_the_checkpoint_of_one_and_all_end_with_any(
    tmp_path: Path,
) -> None:
    one = alone()
    for step in range(2):
        one.update(step, random_groups(step), silent)
    one.copy_state()(tmp_path / "saved")
    expected = written(one, tmp_path / "one")

    async with open_child(
        "learner.trainer.worker", name="trainer", log_path=tmp_path / "log"
    ) as child:
        resume = call(num_processes=2, checkpoint_dir=tmp_path / "saved")
        started = await child.call(resume, Started, timeout_s=LIMIT_S)
        assert started.step == 2
        message = WriteWeights(folder=str(tmp_path / "two"))
        await child.call(message, WroteWeights, timeout_s=LIMIT_S)
        assert_same(load_file(tmp_path / "two" / "model.safetensors"), expected)
        pids = processes_of(child.pid)
        assert len(pids) == 2
        (other,) = pids - {child.pid}

        os.kill(other, signal.SIGKILL)

        update = Update(step=2, groups=random_groups(2))
        with pytest.raises(ChildError, match=r"process 1 of the trainer was killed by SIGKILL"):
            await child.call(update, Updated, timeout_s=LIMIT_S)
        await until_gone(child.pid)


async def test_no_process_is_left_when_the_learner_is_gone(tmp_path: Path) -> None:
    async with open_child(
        "learner.trainer.worker", name="trainer", log_path=tmp_path / "log"
    ) as child:
        await child.call(call(num_processes=2), Started, timeout_s=LIMIT_S)
        assert len(processes_of(child.pid)) == 2

        # As the system does when a process dies.
        child._stream.socket.close()
        await until_gone(child.pid)


def processes_of(group_id: int) -> set[int]:
    """Those that live in a process group."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == group_id and state != "Z":
            found.add(int(path.parent.name))
    return found


async def until_gone(group_id: int) -> None:
    with trio.fail_after(120):
        while processes_of(group_id):  # noqa: ASYNC110 - no event tells of it
            await trio.sleep(0.05)
