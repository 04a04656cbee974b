"""Which rank computes what of a batch.

With sharded parameters all ranks go through the model at the same time, once per *round*: the
largest micro-batch of a round is what the round costs. So micro-batches of like size share a
round, and a rank without one computes a blank.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from learner.trainer.prefix_packing import MicroBatch

MakeMicroBatches = Callable[[int], Sequence[MicroBatch]]
"""Of the most tokens that one may have."""

_SLACK: Final = (1.0, 1.1, 1.25, 1.5)
"""Beyond an even share, when batches are cut smaller so that all ranks get some."""


def spread_over_ranks(
    make: MakeMicroBatches, *, max_tokens: int, num_ranks: int
) -> list[list[MicroBatch]]:
    """Return the rounds, each with one micro-batch per rank.

    Args:
        make: cuts the batch.
        max_tokens: most tokens in a micro-batch.
        num_ranks: how many there are; with one, nothing is cut smaller than need be.
    """
    micro_batches = make(max_tokens)
    if num_ranks == 1 or not micro_batches:
        return [[micro] for micro in micro_batches]
    best = _rounds(micro_batches, num_ranks)
    num_tokens = sum(micro.num_tokens for micro in micro_batches)
    for slack in _SLACK:
        limit = int(slack * num_tokens / (len(best) * num_ranks)) + 1
        if limit < max_tokens:
            rounds = _rounds(make(limit), num_ranks)
            if _cost(rounds) < _cost(best):
                best = rounds
    return best


def _rounds(micro_batches: Sequence[MicroBatch], num_ranks: int) -> list[list[MicroBatch]]:
    ordered = sorted(micro_batches, key=lambda micro: micro.num_tokens, reverse=True)
    rounds = [ordered[at : at + num_ranks] for at in range(0, len(ordered), num_ranks)]
    if rounds:
        rounds[-1] += [blank()] * (num_ranks - len(rounds[-1]))
    return rounds


def _cost(rounds: Sequence[Sequence[MicroBatch]]) -> int:
    return sum(max(micro.num_tokens for micro in micro_batches) for micro_batches in rounds)


def blank() -> MicroBatch:
    """Return a micro-batch of one token that nothing is learned from."""
    zero, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    return MicroBatch(
        tokens_BT=zero[None],
        positions_BT=zero[None],
        ends_BT=np.ones((1, 1), np.int64),
        lengths_B=np.ones(1, np.int64),
        source_P=zero,
        source_M=none,
        target_M=none,
        index_M=none,
    )
