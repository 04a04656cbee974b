"""What can be chosen among, what is needed, what is allowed, and what was chosen: data only.

Every number is checked where it enters, so that nothing behind it has to think of NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Final

from echo2swarm.scheduling.capacity import Delays, LearnerLoad, required_rollouts_per_s

BROADCAST_SLACK: Final = 1.15
"""A broadcast takes this much longer than the bound that the links set."""
DEFAULT_Z: Final = 1.8
"""Standard deviations of supply that are covered."""
MAX_OFFERS: Final = 1_000_000
_GB: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """One node, or ``count`` of a kind, that could work.

    Raises:
        ValueError: a number is negative, infinite or not a number.
    """

    key: str
    """A peer id, or the name of a kind; ties go by it, so that two runs agree."""
    usd_per_hour: float
    """Of one; 0 is free."""
    rollouts_per_s: float | None
    """Of one, accepted in time, times its availability; None if nobody knows yet."""
    rollouts_per_s_std: float = 0.0
    """How far off that may be: its spread, what isn't measured well, and absence."""
    upload_bytes_per_s: float | None = None
    """None is unknown: taken for the median of those that are known."""
    download_bytes_per_s: float | None = None
    load_s: float = 0.0
    """From the last byte of new weights to sampling with them."""
    startup_s: float = 0.0
    """From activation to the first rollout."""
    expected_stay_s: float = inf
    """Over which its start-up is paid off."""
    egress_usd_per_gb: float = 0.0
    """For what it uploads."""
    count: int = 1
    num_active: int = 0
    """How many of them work already."""
    may_start: bool = True
    """Whether one that stands by may be activated (dwell)."""
    may_stop: bool = True
    """Whether one that works may be put on standby (dwell)."""
    is_measured: bool = True
    """Whether its speed rests on enough of what it delivered; if not, it may be given a trial."""
    is_ready: bool = True
    """Whether it could work at once; one that can't yet supplies nothing for now."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check(self.key, "usd_per_hour", self.usd_per_hour)
        _check(self.key, "rollouts_per_s", self.rollouts_per_s)
        _check(self.key, "rollouts_per_s_std", self.rollouts_per_s_std)
        _check(self.key, "upload_bytes_per_s", self.upload_bytes_per_s)
        _check(self.key, "download_bytes_per_s", self.download_bytes_per_s)
        _check(self.key, "load_s", self.load_s)
        _check(self.key, "startup_s", self.startup_s)
        _check(self.key, "egress_usd_per_gb", self.egress_usd_per_gb)
        if not self.expected_stay_s > 0:
            raise ValueError(f"{self.key}: expected_stay_s {self.expected_stay_s} is not positive")
        if not 1 <= self.count <= MAX_OFFERS or not 0 <= self.num_active <= self.count:
            raise ValueError(f"{self.key}: {self.num_active} of {self.count} are active")

    @property
    def is_active(self) -> bool:
        """Whether any of them works."""
        return self.num_active > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the run owner allows; None is no limit.

    Raises:
        ValueError: a limit is negative or not a number.
    """

    max_nodes: int | None = None
    max_usd_per_hour: float | None = None
    """Of all together, egress included."""
    max_node_usd_per_hour: float | None = None
    """Of one."""
    max_trials: int = 2
    """Nodes of unknown speed that are tried at once although enough is supplied."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("max_nodes", "max_usd_per_hour", "max_node_usd_per_hour", "max_trials"):
            _check("limits", name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What keeps the learner busy.

    Raises:
        ValueError: a number is negative, infinite or not a number.
    """

    workload: LearnerLoad
    rollout_s: float
    """g: from the lease to the accepted result, p95."""
    payload_bytes: float = 0.0
    """F: what a node has to fetch for each version; 0 leaves links out of account."""
    source_bytes_per_s: float | None = None
    """What the learner can upload; None leaves links out of account."""
    broadcast_s: float = 0.0
    """B, as measured; counts where links are left out of account."""
    headroom: float = 0.1
    """h: supply beyond what is required, as a share; pays for the spread of rollout times."""
    z: float = DEFAULT_Z
    """Standard deviations of supply to cover on top."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in (
            "rollout_s",
            "payload_bytes",
            "source_bytes_per_s",
            "broadcast_s",
            "headroom",
            "z",
        ):
            _check("need", name, getattr(self, name))

    @property
    def has_links(self) -> bool:
        """Whether broadcast depends on who is chosen."""
        return self.payload_bytes > 0 and bool(self.source_bytes_per_s)

    @property
    def max_broadcast_s(self) -> float:
        """From this broadcast time on no supply is enough; negative if none ever is."""
        return self.free_broadcast_s + self.workload.fed_period_s - self.workload.pause_per_step_s

    @property
    def free_broadcast_s(self) -> float:
        """Up to this broadcast time nothing more is needed than for an instant one."""
        load = self.workload
        return (load.steps_covered - 1) * load.fed_period_s - self.rollout_s

    @property
    def versions_per_hour(self) -> float:
        """How often weights are broadcast, if the learner is busy."""
        return 3600 / (self.workload.publish_every * self.workload.fed_period_s)

    def required_rollouts_per_s(self, broadcast_s: float) -> float:
        """Return the supply that just keeps the learner busy; infinite if none does."""
        return required_rollouts_per_s(
            self.workload, Delays(broadcast_s=broadcast_s, rollout_s=self.rollout_s)
        )

    def needed_rollouts_per_s(self, broadcast_s: float) -> float:
        """Return D, the supply to choose for, headroom included."""
        return (1 + self.headroom) * self.required_rollouts_per_s(broadcast_s)

    def with_staleness(self, max_staleness: int) -> "Need":
        """Return the need if rollouts might be so old."""
        return replace(self, workload=replace(self.workload, max_staleness=max_staleness))


@dataclass(frozen=True, slots=True)
class OfferDecision:
    """What becomes of one offer, and why, for its contributor to read."""

    count: int
    """How many of it work."""
    why: str
    """At most 200 characters; begins with "active" or "standby"."""

    @property
    def is_active(self) -> bool:
        """Whether any of it works."""
        return self.count > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """Nodes that are not there, and would help."""

    count: int
    like: str
    """The key of an offer that they are like; empty if there is none to go by."""
    usd_per_hour: float
    rollouts_per_s: float
    """Of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What lacks, and single changes each of which would do; None is one that would not."""

    rollouts_per_s: float
    """What lacks; infinite if no supply would do, whatever it is."""
    max_usd_per_hour: float | None = None
    """The budget with which the nodes that are there suffice."""
    max_node_usd_per_hour: float | None = None
    """The price per node up to which they suffice."""
    max_nodes: int | None = None
    """The number of nodes with which they suffice."""
    max_staleness: int | None = None
    """The smallest S with which they suffice."""
    add: Addition | None = None
    """What would have to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Who is to work."""

    choices: Mapping[str, OfferDecision]
    """Of every offer, by key."""
    usd_per_hour: float
    """What the chosen cost while they work, egress included."""
    broadcast_s: float
    """B, predicted; as the need has it where links are left out of account."""
    supplied_rollouts_per_s: float
    supplied_std: float
    needed_rollouts_per_s: float | None
    """D at that B; infinite if no supply is enough; None if the need isn't known."""
    is_feasible: bool
    """Whether the chosen supply that, less ``z`` standard deviations."""
    is_kept: bool = False
    """Whether the set that works was kept as it is."""
    method: str = "greedy"
    """How it was found: all, kept, greedy, exact, time limit."""
    bound_usd_per_hour: float | None = None
    """No set that suffices costs less (as this was priced), if that is known."""
    shortfall: Shortfall | None = None
    """Set if the need is known and not met."""
    num_solved: int = field(default=0, compare=False)
    """Integer programs solved."""

    @property
    def chosen(self) -> dict[str, int]:
        """How many of each offer work; only those of which any does."""
        return {key: choice.count for key, choice in self.choices.items() if choice.count}

    @property
    def num_nodes(self) -> int:
        """How many work."""
        return sum(choice.count for choice in self.choices.values())


def effective(
    rollouts_per_s: float, std: float = 0.0, *, availability: float = 1.0
) -> tuple[float, float]:
    """Return mean and standard deviation of what a node supplies that isn't always there.

    Args:
        rollouts_per_s: of a node while it is there.
        std: of that.
        availability: the share of time for which it is there.
    """
    if not 0 <= availability <= 1:
        raise ValueError(f"availability {availability} is not a share")
    variance = availability * std**2 + availability * (1 - availability) * rollouts_per_s**2
    return availability * rollouts_per_s, variance**0.5


def running_usd_per_hour(offer: NodeOffer, need: Need | None) -> float:
    """Return what one of ``offer`` costs while it works: its price and its egress.

    On average everybody passes on each version once.
    """
    if need is None or not offer.egress_usd_per_gb:
        return offer.usd_per_hour
    gb_per_hour = need.payload_bytes / _GB * need.versions_per_hour
    return offer.usd_per_hour + offer.egress_usd_per_gb * gb_per_hour


def starting_usd_per_hour(offer: NodeOffer) -> float:
    """Return what the start-up of one of ``offer`` costs, spread over its stay."""
    return offer.usd_per_hour * offer.startup_s / offer.expected_stay_s


def _check(owner: str, name: str, value: float | None) -> None:
    if value is not None and not (isfinite(value) and value >= 0):
        raise ValueError(f"{owner}: {name} is {value}; it must be a number, and not negative")
