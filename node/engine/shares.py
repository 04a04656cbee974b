"""Work divided among engines that are equally quick; pure."""

from collections.abc import Sequence
from math import ceil

import msgspec

from protocols.leases import LeasedGroup


def shares(groups: Sequence[LeasedGroup], num: int) -> list[tuple[LeasedGroup, ...]]:
    """Divide ``groups`` into at most ``num`` shares of about as many completions each.

    Groups stay whole, so that their prompt is computed once, unless there are fewer of them than
    engines. No share is empty; each sample is in exactly one.
    """
    pieces = list(groups)
    if len(pieces) < num:
        pieces = [piece for group in pieces for piece in _cut(group, ceil(num / len(pieces)))]
    # The largest first, each to whoever has least: Graham's rule, at most a third above the least
    # possible (SIAM J. Appl. Math. 17, 1969, 416-429).
    pieces.sort(key=lambda group: -len(group.samples))
    found: list[list[LeasedGroup]] = [[] for _ in range(min(num, len(pieces)))]
    loads = [0] * len(found)
    for piece in pieces:
        least = min(range(len(found)), key=loads.__getitem__)
        found[least].append(piece)
        loads[least] += len(piece.samples)
    return [tuple(share) for share in found]


def _cut(group: LeasedGroup, num: int) -> list[LeasedGroup]:
    size = ceil(len(group.samples) / num)
    return [
        msgspec.structs.replace(group, samples=group.samples[start : start + size])
        for start in range(0, len(group.samples), size)
    ]
