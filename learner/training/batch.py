"""From groups as they arrive to what an update needs of them; all input is checked here.

Nodes' logprobs and tokens were checked before they got this far. It is done
again because a NaN that slips through would destroy the weights for good.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from learner.config import TrainerTable
from learner.config.objective import objective_of
from learner.training.advantage import group_advantages, length_weights
from learner.training.batching import Sample
from learner.training.messages import TrainGroup, TrainRollout
from protocols.packed import unpack_floats, unpack_tokens

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples of an update that have something to teach, and their tokens in one line.

    N is the number of their completion tokens.
    """

    samples: tuple[Sample, ...]
    peers: tuple[str, ...]
    """Who made each sample."""
    staleness: tuple[int, ...]
    """Updates made since the version that each sample is of."""
    is_checked: tuple[bool, ...]
    """Whether each sample would be here whatever its own reward: the others of its group differ
    without it. Of the rest nothing can be told of how they were sampled: a rare answer is what
    brings its group here."""
    minibatch: tuple[int, ...]
    """In which of the update's optimizer steps each sample is; whole groups are."""
    num_minibatches: int
    """Some may be without samples."""
    behaviour_N: Floats
    advantages_N: Floats
    weights_N: Floats
    """Of each token in the loss of its minibatch."""
    metrics: dict[str, float]
    """What can be said without the model."""

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.behaviour_N)


def make_batch(
    groups: Sequence[TrainGroup],
    table: TrainerTable,
    *,
    step: int,
    vocab_size: int,
    max_new_tokens: int,
) -> Batch:
    """Check, unpack and weigh ``groups``.

    Args:
        groups: one update's.
        table: how it is made.
        step: updates made before it.
        vocab_size: what token ids must be below.
        max_new_tokens: the constant of the length normalisation of that name.

    Raises:
        ValueError: something in them can't be trained on; the message says what and where.
    """
    objective = objective_of(table)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    unpacked = [_completion(group, r, step, vocab_size) for group in groups for r in group.rollouts]
    num_minibatches = max(1, min(table.minibatches, len(groups)))
    # Dealt in turn: they come sorted by age, and each optimizer step should see all ages.
    minibatches = [number % num_minibatches for number, g in enumerate(groups) for _ in g.rollouts]
    weights = _weights(
        [len(tokens) for tokens, _ in unpacked],
        minibatches,
        partial(length_weights, norm=objective.length_norm, constant=max_new_tokens),
    )
    samples: list[Sample] = []
    peers: list[str] = []
    staleness: list[int] = []
    is_checked: list[bool] = []
    minibatch: list[int] = []
    parts: list[tuple[Floats, Floats, Floats]] = []
    num_unequal = first = index = 0
    for group in groups:
        prompt = _tokens(group, group.prompt_tokens, vocab_size)
        advantages = group_advantages(
            [rollout.reward for rollout in group.rollouts], scale=objective.scale_advantages
        )
        num_unequal += advantages is not None
        counts = Counter(rollout.reward for rollout in group.rollouts)
        for offset, rollout in enumerate(group.rollouts):
            completion, logprobs = unpacked[index]
            weight, part, index = weights[index], minibatches[index], index + 1
            # The KL penalty pulls on every sample; without it these have no gradient.
            if (advantages is None and not objective.kl_coefficient) or not completion:
                continue
            samples.append(Sample(tokens=prompt + completion, num_prompt=len(prompt), first=first))
            peers.append(rollout.peer_id)
            staleness.append(step - rollout.version)
            num_others = len(counts) - (counts[rollout.reward] == 1)
            is_checked.append(num_others > 1 or bool(objective.kl_coefficient))
            minibatch.append(part)
            size, advantage = len(completion), advantages[offset] if advantages else 0.0
            first += size
            parts.append(
                (
                    np.asarray(logprobs, np.float32),
                    np.full(size, advantage, np.float32),
                    np.full(size, weight, np.float32),
                )
            )
    columns = list(zip(*parts, strict=True)) or [(np.zeros(0, np.float32),)] * 3
    behaviour, advantage_values, weight_values = (np.concatenate(column) for column in columns)
    return Batch(
        samples=tuple(samples),
        peers=tuple(peers),
        staleness=tuple(staleness),
        is_checked=tuple(is_checked),
        minibatch=tuple(minibatch),
        num_minibatches=num_minibatches,
        behaviour_N=behaviour,
        advantages_N=advantage_values,
        weights_N=weight_values,
        metrics={
            "num_groups": len(groups),
            "num_groups_unequal": num_unequal,
            "num_rollouts": len(rollouts),
            "num_tokens": sum(len(tokens) for tokens, _ in unpacked),
            "num_tokens_trained": len(behaviour),
            **_reward_metrics(rollouts),
        },
    )


def _weights(
    lengths: Sequence[int],
    minibatches: Sequence[int],
    weights_of: Callable[[Sequence[int]], list[float]],
) -> list[float]:
    """Return the weight of each completion's tokens: each minibatch is an average of its own."""
    weights = [0.0] * len(lengths)
    for number in sorted(set(minibatches)):
        indices = [index for index, part in enumerate(minibatches) if part == number]
        found = weights_of([lengths[index] for index in indices])
        for index, weight in zip(indices, found, strict=True):
            weights[index] = weight
    return weights


def _reward_metrics(rollouts: Sequence[TrainRollout]) -> dict[str, float]:
    if not rollouts:
        return {}
    rewards = np.asarray([rollout.reward for rollout in rollouts], np.float64)
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "completion_truncated_share": sum(r.is_truncated for r in rollouts) / len(rollouts),
    }


def _completion(
    group: TrainGroup, rollout: TrainRollout, step: int, vocab_size: int
) -> tuple[list[int], list[float]]:
    where = f"group {group.group_id}, a rollout of {rollout.peer_id}"
    tokens = _tokens(group, rollout.tokens, vocab_size)
    logprobs = unpack_floats(rollout.logprobs)
    if len(tokens) != len(logprobs):
        raise ValueError(f"{where}: {len(tokens)} tokens, but {len(logprobs)} logprobs")
    if not all(map(math.isfinite, logprobs)):
        raise ValueError(f"{where}: a behaviour logprob is not finite")
    if rollout.version > step:
        raise ValueError(
            f"{where}: it is of version {rollout.version}, but {step} updates are done"
        )
    if not math.isfinite(rollout.reward):
        raise ValueError(f"{where}: the reward is {rollout.reward}")
    return tokens, logprobs


def _tokens(group: TrainGroup, data: bytes, vocab_size: int) -> list[int]:
    tokens = unpack_tokens(data)
    if not group.prompt_tokens:
        raise ValueError(f"group {group.group_id}: the prompt is empty")
    if tokens and max(tokens) >= vocab_size:
        raise ValueError(
            f"group {group.group_id}: token {max(tokens)}, but the vocabulary has {vocab_size}"
        )
    return tokens
