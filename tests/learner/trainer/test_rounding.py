"""The policy that is trained is the one that nodes sample from."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from learner.trainer.messages import TrainGroup
from learner.trainer.policy import load_model
from learner.trainer.prefix_packing import PackedSample
from learner.trainer.rounding import rounded
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.worker import load_trainer
from protocols.packed import unpack_tokens
from tests.learner.trainer.model_inputs import group, plain_logprobs, random_groups, rollout, start
from tests.tiny_model import TINY_MODEL_DIR

# 1 + 2**-9 lies between two neighbours in bfloat16, of which 1.0 is the nearer.
BETWEEN = 1 + 2**-9


def test_weights_are_rounded_inside_and_whole_again_outside() -> None:
    parameter = torch.nn.Parameter(torch.tensor([BETWEEN, 2.0]))

    with rounded([parameter], torch.bfloat16):
        inside = parameter.detach().clone()
        (parameter * 3).sum().backward()

    assert inside.tolist() == [1.0, 2.0]
    assert parameter.tolist() == [BETWEEN, 2.0]
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0, 3.0]


def test_weights_are_whole_again_after_an_error() -> None:
    parameter = torch.nn.Parameter(torch.tensor([BETWEEN]))

    with pytest.raises(RuntimeError), rounded([parameter], torch.bfloat16):
        raise RuntimeError

    assert parameter.tolist() == [BETWEEN]


def test_nothing_is_lost_where_nothing_is_rounded() -> None:
    parameter = torch.nn.Parameter(torch.tensor([BETWEEN]))

    with rounded([parameter], torch.float32):
        assert parameter.tolist() == [BETWEEN]


@pytest.mark.model
def test_rollouts_of_the_version_just_published_have_no_drift(tmp_path: Path) -> None:
    trainer = load_trainer(start(warmup_steps=0, learning_rate=1e-4))
    assert isinstance(trainer, PolicyTrainer)
    for step in range(3):
        trainer.update(step, random_groups(step), lambda *_: None)
    names = trainer.write_weights(tmp_path / "published")
    (tmp_path / "published" / "config.json").write_bytes(
        (TINY_MODEL_DIR / "config.json").read_bytes()
    )
    assert names == ["model.safetensors"]
    node = load_model(tmp_path / "published", device=torch.device("cpu"))

    updated = trainer.update(3, [_sampled_by(node, g) for g in random_groups(9)], lambda *_: None)

    assert updated.metrics["drift_max"] < 1e-4


def _sampled_by(model: PreTrainedModel, made: TrainGroup) -> TrainGroup:
    """Return the group with the logprobs that ``model`` gives its completions."""
    prompt = unpack_tokens(made.prompt_tokens)
    rollouts = []
    for r in made.rollouts:
        tokens = unpack_tokens(r.tokens)
        sample = PackedSample(tokens=prompt + tokens, num_prompt=len(prompt), first=0)
        with torch.no_grad():
            logprobs = plain_logprobs(model, [sample]).tolist()
        rollouts.append(rollout(tokens, logprobs, reward=r.reward))
    return group(made.group_id, prompt, rollouts)
