"""Whether the node works now: what its owner said, the hours, and who else uses the GPU. Pure."""

from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Final

from node.owner.gpu import GpuUse
from node.owner.hours import Hours, format_hours, is_within

GPU_QUIET_S: Final = 60.0
"""For so long nobody else may have used the GPU before the node does again."""
BUSY_BYTES: Final = 1024**3
"""Of GPU memory, held by others: a desktop has less, a game or a training run more."""
BUSY_SHARE: Final = 0.2
"""Of the GPU's time, used by others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAction:
    """A pause that the owner has asked for."""

    why: str = ""
    until_s: float = inf
    """On the clock that never jumps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerFacts:
    """What a decision is made of."""

    now_s: float
    """On the clock that never jumps."""
    local: datetime
    """What the owner's clock shows."""
    hours: Hours = ()
    order: OwnerAction | None = None
    gpu_busy: str = ""
    """Who else uses the GPU; empty if nobody does, or nobody cares."""
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class RunAction:
    """Take work."""


@dataclass(frozen=True, slots=True)
class PauseAction:
    """Take no work, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class DrainAction:
    """Finish, and leave."""


Decision = RunAction | PauseAction | DrainAction


def decide(facts: OwnerFacts) -> Decision:
    """Return what the node is to do; what the owner said last comes before what they set."""
    if facts.is_leaving:
        return DrainAction()
    if facts.order is not None and facts.now_s < facts.order.until_s:
        return PauseAction(f"paused by its owner: {facts.order.why}".removesuffix(": "))
    if not is_within(facts.hours, facts.local):
        return PauseAction(f"outside its hours, {format_hours(facts.hours)}")
    if facts.gpu_busy:
        return PauseAction(facts.gpu_busy)
    return RunAction()


class GpuWatch:
    """Whether others use the GPU: at once when they begin, and for a while after they ended."""

    def __init__(self) -> None:
        self._why = ""
        self._busy_at_s = -inf

    def look(self, others: tuple[GpuUse, ...], now_s: float) -> str:
        """Take in who else uses the GPU now; returns why that is too much, or nothing."""
        if why := _too_much(others):
            self._why, self._busy_at_s = why, now_s
        elif now_s - self._busy_at_s >= GPU_QUIET_S:
            self._why = ""
        return self._why


def _weight(use: GpuUse) -> float:
    return use.memory_bytes / BUSY_BYTES + (use.time_share or 0.0) / BUSY_SHARE


def _too_much(others: tuple[GpuUse, ...]) -> str:
    held_bytes = sum(use.memory_bytes for use in others)
    share = sum(use.time_share or 0.0 for use in others)
    if held_bytes < BUSY_BYTES and share < BUSY_SHARE:
        return ""
    largest = max(others, key=_weight)
    return f"{largest.name} uses the GPU (others hold {held_bytes / 1e9:.1f} GB" + (
        f" and {share:.0%} of its time)" if share else ")"
    )
