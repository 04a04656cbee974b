"""Several optimizer steps per update; sequences across pieces; memory for time."""

import pytest
import torch

from echo2swarm.system.errors import StoreError
from learner.config import TrainerConfig
from learner.trainer.batch import make_batch
from learner.trainer.messages import TrainGroup
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.weights import model_tensors
from learner.trainer.worker import load_trainer
from tests.learner.trainer.model_inputs import random_groups, start

pytestmark = pytest.mark.model

GSPO = {"objective": "gspo", "importance": "coupled", "clip_low": 0.5, "clip_high": 0.5}


def trainer_of(**keys: object) -> PolicyTrainer:
    trainer = load_trainer(start(**keys))  # type: ignore[arg-type]
    assert isinstance(trainer, PolicyTrainer)
    return trainer


def weights(trainer: PolicyTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model_tensors(trainer._model).items()}


def silent(what: str, done: float, total: float) -> None:
    pass


def moments(trainer: PolicyTrainer) -> list[torch.Tensor]:
    states = trainer._optimizer.state_dict()["state"]
    return [states[number]["exp_avg"] for number in sorted(states)]


def test_each_minibatch_is_one_optimizer_step_with_whole_groups() -> None:
    groups = random_groups(0, num_groups=6)
    trainer = trainer_of(minibatches=3)

    updated = trainer.update(0, groups, silent)

    assert updated.step == 1
    assert updated.metrics["num_optimizer_steps"] == 3
    assert {float(s["step"]) for s in trainer._optimizer.state_dict()["state"].values()} == {3.0}


def test_minibatches_are_updates_one_after_the_other_but_for_the_clip_and_the_weights() -> None:
    """Each takes its gradient where the last one left the weights."""
    groups = random_groups(1, num_groups=4)
    keys = {"importance": "none", "clip_low": 0.99, "clip_high": 1e9, "warmup_steps": 0}
    together = trainer_of(minibatches=2, learning_rate=1e-5, **keys)
    apart = trainer_of(learning_rate=1e-5, **keys)

    together.update(0, groups, silent)
    apart.update(0, groups[0::2], silent)
    apart.update(1, groups[1::2], silent)

    # To first order: the second step's ratio is 1 plus what the first one changed.
    for one, other in zip(moments(together), moments(apart), strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * scale)


def test_the_proximal_policy_is_that_before_the_first_step() -> None:
    groups = random_groups(2, num_groups=4)
    trainer = trainer_of(minibatches=2, learning_rate=3e-3, warmup_steps=0)

    metrics = trainer.update(0, groups, silent).metrics
    alone = trainer_of(learning_rate=3e-3, warmup_steps=0).update(0, groups, silent).metrics

    assert metrics["ratio_mean"] != 1
    for name in ("drift_mean", "importance_mean", "kl_behaviour_prox"):
        assert metrics[name] == pytest.approx(alone[name], rel=1e-4)


def test_the_clip_stops_what_has_gone_far_enough() -> None:
    groups = random_groups(3, num_groups=8)
    keys = {"minibatches": 8, "learning_rate": 3e-3, "warmup_steps": 0}

    tight = trainer_of(clip_low=0.01, clip_high=0.01, **keys).update(0, groups, silent).metrics
    loose = trainer_of(clip_low=0.99, clip_high=1e9, **keys).update(0, groups, silent).metrics

    assert loose["clipped_share"] == 0
    assert tight["clipped_low_share"] > 0
    assert tight["clipped_high_share"] > 0


def test_more_minibatches_than_groups_and_some_without_signal_do_no_harm() -> None:
    trainer = trainer_of(minibatches=8)

    updated = trainer.update(0, random_groups(4, num_groups=3, equal=(1,)), silent)

    assert updated.metrics["num_optimizer_steps"] == 2


@pytest.mark.parametrize("length_norm", ["token", "sequence", "constant"])
def test_the_weights_of_each_minibatch_are_those_of_a_batch_of_its_own(length_norm: str) -> None:
    groups = random_groups(5, num_groups=4)
    table = TrainerConfig(minibatches=2, length_norm=length_norm)  # type: ignore[arg-type]
    one = TrainerConfig(length_norm=length_norm)  # type: ignore[arg-type]

    def weights_of(some: tuple[TrainGroup, ...], keys: TrainerConfig) -> dict[int, list[float]]:
        batch = make_batch(some, keys, step=0, vocab_size=16, max_new_tokens=4)
        found: dict[int, list[float]] = {}
        for sample, minibatch in zip(batch.samples, batch.minibatch, strict=True):
            found.setdefault(minibatch, []).append(float(batch.weights_N[sample.first]))
        return found

    together = weights_of(groups, table)
    assert together[0] == weights_of(groups[0::2], one)[0]
    assert together[1] == weights_of(groups[1::2], one)[0]


def test_a_failure_between_two_steps_leaves_nothing_that_could_be_taken_for_a_version(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    trainer = trainer_of(minibatches=2)

    def fail_late(what: str, done: float, total: float) -> None:
        if done == total - 1:
            raise MemoryError

    with pytest.raises(MemoryError):
        trainer.update(0, random_groups(6), fail_late)

    for ask in (
        lambda: trainer.update(0, random_groups(6), silent),
        lambda: trainer.write_weights(tmp_path_factory.mktemp("weights") / "new"),
        trainer.copy_state,
    ):
        with pytest.raises(StoreError, match="between two of its optimizer steps"):
            ask()


def test_a_gradient_that_is_not_finite_is_one_step_left_out() -> None:
    trainer = trainer_of(minibatches=2)
    with torch.no_grad():
        trainer._model.get_parameter("model.embed_tokens.weight")[5, 0] = float("inf")
    before = weights(trainer)

    metrics = trainer.update(0, random_groups(7), silent).metrics

    assert metrics["is_not_finite"] == 1
    assert metrics["num_optimizer_steps"] == 0
    torch.testing.assert_close(weights(trainer), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "keys",
    [
        GSPO,
        {"importance_level": "sequence", "importance_cap": 1.1},
        {"mask_level": "geometric", "mask_above": 1.5},
    ],
)
def test_sequences_that_are_cut_into_pieces_have_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, object]
) -> None:
    groups = random_groups(8)
    whole, pieces = trainer_of(**keys), trainer_of(**keys)

    metrics = whole.update(0, groups, silent).metrics
    monkeypatch.setattr("learner.trainer.gradient._MAX_LOGITS", 3 * 16)
    other = pieces.update(0, groups, silent).metrics

    assert metrics["grad_norm"] > 0
    for name in ("grad_norm", "loss", "importance_mean", "clipped_share", "masked_share"):
        assert metrics[name] == pytest.approx(other[name], rel=1e-4, abs=1e-7)
    for one, two in zip(moments(whole), moments(pieces), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-7)


def test_activation_checkpointing_changes_memory_not_gradients() -> None:
    groups = random_groups(9)
    plain, checkpointed = trainer_of(), trainer_of(activation_checkpointing=True)
    num_forward = [0, 0]
    for number, trainer in enumerate((plain, checkpointed)):

        def count(*_: object, number: int = number) -> None:
            num_forward[number] += 1

        trainer._model.model.layers[0].mlp.register_forward_pre_hook(count)

    metrics = plain.update(0, groups, silent).metrics
    other = checkpointed.update(0, groups, silent).metrics

    assert num_forward[1] == 2 * num_forward[0] > 0
    assert other["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-5)
    torch.testing.assert_close(weights(checkpointed), weights(plain), rtol=0, atol=1e-7)


def test_updates_too_small_for_bfloat16_add_up_in_the_master_weights() -> None:
    groups = random_groups(10)
    keys = {"learning_rate": 1e-6, "warmup_steps": 0, "compute_dtype": "bfloat16"}
    trainer = trainer_of(**keys)
    before = weights(trainer)

    trainer.update(0, groups, silent)
    first = weights(trainer)
    for step in range(1, 40):
        trainer.update(step, groups, silent)

    name = "model.layers.0.mlp.up_proj.weight"
    start_, once, often = (w[name].bfloat16() for w in (before, first, weights(trainer)))
    # One step is lost on nearly all bfloat16 weights, and so would be each of the others.
    assert float((once != start_).float().mean()) < 0.02
    assert float((often != start_).float().mean()) > 0.2
