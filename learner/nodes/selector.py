"""Which nodes to activate: the cheapest first, up to what is needed and may be spent. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocols.ids import PeerId

KEEP_BELOW: Final = 1.25
"""An active node is kept while the others supply less than this times the need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A node that could work."""

    peer: PeerId
    usd_per_hour: float
    rollouts_per_s: float | None
    """What it does when it has work, measured; None if not yet."""
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the run owner allows; None is no limit."""

    max_nodes: int | None = None
    max_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether to activate a node, and why, for its contributor to read."""

    is_active: bool
    why: str


def select(
    offers: Iterable[Offer], *, needed_rollouts_per_s: float | None, limits: Limits
) -> dict[PeerId, Choice]:
    """Choose among ``offers``; ties go by peer id, so that two runs agree.

    A node without a measured speed counts as supplying nothing: it is tried.
    """
    choices: dict[PeerId, Choice] = {}
    supplied = spent = 0.0
    num_active = 0
    for offer in sorted(offers, key=lambda offer: (offer.usd_per_hour, offer.peer)):
        enough = (needed_rollouts_per_s or 0.0) * (KEEP_BELOW if offer.is_active else 1.0)
        if limits.max_nodes is not None and num_active >= limits.max_nodes:
            choice = Choice(False, f"standby: max_nodes is {limits.max_nodes}, others cost less")
        elif (
            limits.max_usd_per_hour is not None
            and spent + offer.usd_per_hour > limits.max_usd_per_hour
        ):
            choice = Choice(
                False,
                f"standby: {spent + offer.usd_per_hour:.2f} USD/h with this node, "
                f"max_usd_per_hour is {limits.max_usd_per_hour:g}",
            )
        elif needed_rollouts_per_s is not None and supplied >= enough:
            choice = Choice(
                False,
                f"standby: cheaper nodes supply {supplied:.2f} rollouts/s, "
                f"{needed_rollouts_per_s:.2f} are needed",
            )
        else:
            choice = Choice(True, "active: its rollouts are needed")
            num_active += 1
            spent += offer.usd_per_hour
            supplied += offer.rollouts_per_s or 0.0
        choices[offer.peer] = choice
    return choices
