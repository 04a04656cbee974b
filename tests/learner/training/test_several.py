"""A trainer of several processes: it does what one does, and no process outlives the others.

Rank 0 of most tests is the process of the tests itself, which has torch loaded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learner.training.gang_trainer import GangTrainer
from learner.training.messages import Start
from learner.training.trainer import Trainer
from learner.training.worker import open_trainer
from tests.learner.training.model_inputs import group, random_groups, rollout, start

pytestmark = [pytest.mark.model, pytest.mark.processes, pytest.mark.timeout(180)]
LIMIT_S = 120.0
OPTIONS: dict[str, Any] = {
    "warmup_steps": 0,
    "publish_dtype": "float32",
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


def alone(checkpoint_dir: Path | None = None) -> Trainer:
    trainer = open_trainer(call(num_processes=1, checkpoint_dir=checkpoint_dir))
    assert isinstance(trainer, Trainer)
    return trainer


def open_gang(checkpoint_dir: Path | None = None) -> GangTrainer:
    trainer = open_trainer(call(num_processes=2, checkpoint_dir=checkpoint_dir))
    assert isinstance(trainer, GangTrainer)
    return trainer


@pytest.fixture(scope="module")
def gang() -> Iterator[GangTrainer]:
    trainer = open_gang()
    yield trainer
    trainer.close()


def written(trainer: Trainer | GangTrainer, folder: Path) -> dict[str, torch.Tensor]:
    assert trainer.write_weights(folder) == ["model.safetensors"]
    return load_file(folder / "model.safetensors")


def values(trainer: Trainer, key: str) -> dict[str, torch.Tensor]:
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


def test_two_processes_train_as_one_does(gang: GangTrainer, tmp_path: Path) -> None:
    one = alone()
    for step in range(3):
        groups = random_groups(step, num_groups=3 + step, equal=(1,))
        expected = one.update(step, groups, silent)
        found = gang.update(step, groups, silent)
        assert found.step == expected.step
        assert found.drift_by_peer == pytest.approx(expected.drift_by_peer, rel=1e-4)
        for name, value in expected.metrics.items():
            if name.endswith(("_s", "_bytes", "_computed")):
                continue
            assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert (
        largest_difference(written(one, tmp_path / "one"), written(gang, tmp_path / "two")) < 1e-5
    )
