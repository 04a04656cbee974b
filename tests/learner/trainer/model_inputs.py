"""Groups and samples for the tiny model."""

import random

import torch
from transformers import PreTrainedModel

from learner.trainer.messages import Start, TrainGroup, TrainRollout
from learner.trainer.prefix_packing import PackedSample
from protocols.packed import pack_floats, pack_tokens
from tests.tiny_model import TINY_MODEL_DIR

ASK, EOS = 11, 10


def start(
    *, checkpoint_dir: str | None = None, temperature: float = 1.0, **trainer: object
) -> Start:
    """A call that loads the tiny model; made-up logprobs count, unless it says otherwise."""
    return Start(
        model_dir=str(TINY_MODEL_DIR),
        trainer={
            "learning_rate": 3e-4,
            "compute_dtype": "float32",
            "device": "cpu",
            "max_drift": 0.0,
            **trainer,
        },
        seed=0,
        temperature=temperature,
        checkpoint_dir=checkpoint_dir,
        max_new_tokens=4,
    )


def random_groups(
    seed: int, *, num_groups: int = 4, group_size: int = 4, equal: tuple[int, ...] = ()
) -> tuple[TrainGroup, ...]:
    """Groups with made-up completions, logprobs and rewards."""
    rng = random.Random(seed)
    groups = []
    for group_id in range(num_groups):
        prompt = [*(rng.randrange(10) for _ in range(3)), ASK]
        rollouts = []
        for index in range(group_size):
            completion = [rng.randrange(10) for _ in range(rng.randint(1, 4))]
            rollouts.append(
                rollout(
                    completion,
                    [-rng.random() * 3 for _ in completion],
                    reward=1.0 if group_id in equal else float(index % 2),
                    peer_id=f"peer-{index % 2}",
                )
            )
        groups.append(group(group_id, prompt, rollouts))
    return tuple(groups)


def rollout(
    tokens: list[int], logprobs: list[float], *, reward: float, peer_id: str = "peer"
) -> TrainRollout:
    """One completion."""
    return TrainRollout(
        tokens=pack_tokens(tokens),
        logprobs=pack_floats(logprobs),
        version=0,
        reward=reward,
        is_truncated=tokens[-1:] != [EOS],
        peer_id=peer_id,
    )


def group(group_id: int, prompt: list[int], rollouts: list[TrainRollout]) -> TrainGroup:
    """One prompt with its completions."""
    return TrainGroup(
        group_id=group_id, prompt_tokens=pack_tokens(prompt), rollouts=tuple(rollouts)
    )


def random_samples(seed: int, *, vocab_size: int = 16, num_prompts: int = 3) -> list[PackedSample]:
    """Samples that share prompts, and some that share more."""
    rng = random.Random(seed)
    samples: list[PackedSample] = []
    first = 0
    common = [rng.randrange(vocab_size) for _ in range(5)]
    for _ in range(num_prompts):
        prompt = common + [rng.randrange(vocab_size) for _ in range(rng.randint(1, 4))]
        opening = [rng.randrange(vocab_size) for _ in range(2)]
        for index in range(4):
            completion = opening if index % 2 else []
            completion = completion + [rng.randrange(vocab_size) for _ in range(rng.randint(1, 6))]
            samples.append(
                PackedSample(tokens=prompt + completion, num_prompt=len(prompt), first=first)
            )
            first += len(completion)
    return samples


def plain_logprobs(
    model: PreTrainedModel, samples: list[PackedSample], *, temperature: float = 1.0
) -> torch.Tensor:
    """Return the logprobs of all completion tokens, from one ordinary forward per sample."""
    parts = []
    for sample in samples:
        tokens = torch.tensor([list(sample.tokens)])
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1] / temperature
        chosen = logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        parts.append(chosen[sample.num_prompt - 1 :])
    return torch.cat(parts)
