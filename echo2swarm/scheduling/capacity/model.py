"""The overlap model: when training, broadcast and generation at once keep the learner busy.

Per step the learner trains for T seconds on R rollouts, of versions at most S steps old. Every
kappa steps it publishes a version, which nodes sample with B seconds later; a rollout is back
g seconds after it was begun. All nodes together make mu rollouts per second. Work is leased
only where it will be fresh when used, and consumed oldest first.

A step t needs rollouts of a published version not older than t - S. In the worst case that is
the version v = t - (S - kappa + 1), which all R of them have to wait for: from the publication
of v until update t is done pass B + R/mu + g + T seconds, and S - kappa + 2 updates. Between
that and the next publication the learner goes on at its own pace or that of the supply, the
slower of the two. Hence, with x = max(T, R/mu), L = T + B + g + R/mu, D = S - kappa + 2::

    period T' <= max(x, (L + (m kappa - D) x) / (m kappa)),   m = ceil(D / kappa)           (3)
    never starved     iff  mu >= R / min(T, (D - 1) T - B - g)  and  (D - 1) T > B + g      (1)
    nothing wasted at mu = R/T     iff  S >= kappa + ceil((B + g) / T)                      (2)
    share that is late, if nodes never pause:  E_g[clip((B + g - (S - kappa) T) / (kappa T))]  (4)

Where an engine makes nothing while it loads a version (for p seconds), the supply's pace is
R/mu + p/kappa, and (1) has p/kappa seconds less to make R rollouts in.

``docs/capacity.md`` derives them and holds them against a simulation. With kappa = 1, (3) is
max(x, L / D), and for larger kappa that is a bound, too, but a loose one. (3) counts making R
rollouts and the last one's own time one after the other. Where it is known for how long a
rollout holds its place on a node (h), :func:`forecast` is closer: as many as there are places,
mu h, begin at once, so that the R take ceil(R / (mu h)) h and not R/mu + h. What varies from
rollout to rollout is in g by its 95th percentile, and is paid for by provisioning more than
(1), see :func:`provisioned_rollouts_per_s`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

MAX_SECONDS: Final = 1e9
MIN_TRAIN_S: Final = 1e-6
MAX_ROLLOUTS: Final = 1_000_000_000
_TINY: Final = 1e-9
"""Relative; sums of floats that should be equal differ by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLoad:
    """What the learner does.

    Raises:
        ValueError: a number is out of range, or no schedule could satisfy the bound.
    """

    rollouts_per_step: int
    """R."""
    train_s: float
    """T, of one update."""
    max_staleness: int
    """S."""
    publish_every: int = 1
    """kappa; at most S + 1."""
    overhead_s: float = 0.0
    """Of the learner's own, per step, between updates: writing weights, checkpoints."""
    pause_s: float = 0.0
    """Per published version, for how long a node makes nothing because its engine loads it."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check_count("rollouts_per_step", self.rollouts_per_step, 1)
        _check_count("max_staleness", self.max_staleness, 0)
        _check_count("publish_every", self.publish_every, 1)
        if not MIN_TRAIN_S <= self.train_s <= MAX_SECONDS:
            raise ValueError(
                f"train_s must be from {MIN_TRAIN_S:g} to {MAX_SECONDS:g} s, got {self.train_s}"
            )
        _check_seconds("overhead_s", self.overhead_s)
        _check_seconds("pause_s", self.pause_s)
        if self.publish_every > self.max_staleness + 1:
            raise ValueError(
                f"publish_every {self.publish_every} with max_staleness {self.max_staleness}: the "
                "learner would wait for ever; publish at least every max_staleness + 1 steps"
            )

    @property
    def fed_period_s(self) -> float:
        """From one update to the next, if rollouts are always there."""
        return self.train_s + self.overhead_s

    @property
    def pause_per_step_s(self) -> float:
        """Of each step, in the long term, for how long a node makes nothing."""
        return self.pause_s / self.publish_every

    @property
    def steps_covered(self) -> int:
        """D - 1: the steps of training that generation and broadcast have time for."""
        return self.max_staleness - self.publish_every + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """What lies between new weights and the rollouts made with them.

    Raises:
        ValueError: a time is negative, or not a number.
    """

    broadcast_s: float
    """B: from the end of an update to its weights applied by the engines; p95 over nodes."""
    rollout_s: float
    """g: from the lease to the accepted result; p95."""
    occupied_s: float = 0.0
    """h: of that, how long it holds a place on its node; 0 where it is not known."""
    rollout_times_s: Sequence[float] = ()
    """A sample of g, or its quantiles, for what depends on its spread."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        _check_seconds("broadcast_s", self.broadcast_s)
        _check_seconds("rollout_s", self.rollout_s)
        if not 0 <= self.occupied_s <= self.rollout_s:
            raise ValueError(
                f"occupied_s must be from 0 to rollout_s, {self.rollout_s:g} s; got "
                f"{self.occupied_s}"
            )
        for value in self.rollout_times_s:
            _check_seconds("rollout_times_s", value)

    @property
    def total_s(self) -> float:
        """B + g."""
        return self.broadcast_s + self.rollout_s


class BindingLimit(StrEnum):
    """What the learner's period is set by."""

    LEARNER = "learner"
    """It trains all the time."""
    SUPPLY = "supply"
    """Too few rollouts per second."""
    LATENCY = "latency"
    """Weights and rollouts are under way for longer than S covers; more nodes hardly help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run does in the long term."""

    period_s: float
    """T', from one update to the next; infinite without supply."""
    bound_s: float
    """(3): what T' is at most, however rollouts share the nodes."""
    utilisation: float
    """The share of its time that the learner trains."""
    idle_share: float
    """Of what the nodes could make, what nobody needs: they wait for leases."""
    wasted_share: float
    """Of the rollouts, what a learner that never waits would find too late if nodes never
    paused (4). Work that is paced is not begun instead: it is in ``idle_share``."""
    binds: BindingLimit
    required_rollouts_per_s: float
    """(1): from here on the learner never waits; infinite if it would for any supply."""
    supply_slack: float
    """Supply beyond what is required, as a share of it; negative if short."""
    latency_slack_s: float
    """By how much longer a broadcast or a rollout may take before the learner waits for it."""


def required_rollouts_per_s(workload: LearnerLoad, delays: Delays) -> float:
    """Return the supply from which on the learner never waits (1); infinite if it must wait."""
    usable_s = workload.steps_covered * workload.fed_period_s - delays.total_s
    within_s = min(workload.fed_period_s, usable_s) - workload.pause_per_step_s
    return workload.rollouts_per_step / within_s if within_s > 0 else inf


def provisioned_rollouts_per_s(workload: LearnerLoad, delays: Delays, *, headroom: float) -> float:
    """Return what to provision: (1) and a share ``headroom`` more for the spread of rollouts."""
    if not (math.isfinite(headroom) and headroom >= 0):
        raise ValueError(f"headroom must be finite and not negative, got {headroom}")
    return required_rollouts_per_s(workload, delays) * (1 + headroom)


def min_staleness(
    workload: LearnerLoad, delays: Delays, *, rollouts_per_s: float | None = None
) -> int:
    """Return the smallest S with which the learner never waits and nothing is wasted (2).

    Args:
        workload: its ``max_staleness`` does not matter.
        delays: B and g.
        rollouts_per_s: the supply, if it is more than R/T; then a smaller S may be enough for
            the learner. What is less than R/T is never enough, whatever S: it counts as R/T.
    """
    period_s = workload.fed_period_s
    per_step_s = period_s
    if rollouts_per_s is not None:
        _check_rate("rollouts_per_s", rollouts_per_s)
        if rollouts_per_s > 0:
            per_step_s = min(period_s, workload.rollouts_per_step / rollouts_per_s)
    return max(0, workload.publish_every - 1 + _steps(delays.total_s + per_step_s, period_s))


def max_publish_every(workload: LearnerLoad, delays: Delays) -> int | None:
    """Return the largest kappa that S allows without waiting or waste; None if there is none.

    Args:
        workload: its ``publish_every`` does not matter.
        delays: B and g.
    """
    period_s = workload.fed_period_s
    largest = workload.max_staleness + 1 - _steps(delays.total_s + period_s, period_s)
    return largest if largest >= 1 else None


def forecast(workload: LearnerLoad, delays: Delays, *, rollouts_per_s: float) -> Forecast:
    """Return what the run does with a supply of ``rollouts_per_s`` (3).

    No supply at all is a stated result: an infinite period, and no utilisation.

    Raises:
        ValueError: the supply is negative or not a number.
    """
    _check_rate("rollouts_per_s", rollouts_per_s)
    required = required_rollouts_per_s(workload, delays)
    own_s = workload.fed_period_s
    generation_s = workload.rollouts_per_step / rollouts_per_s if rollouts_per_s > 0 else inf
    if generation_s > MAX_SECONDS:
        return Forecast(
            period_s=inf,
            bound_s=inf,
            utilisation=0.0,
            idle_share=0.0,
            wasted_share=stale_share(workload, delays),
            binds=BindingLimit.SUPPLY,
            required_rollouts_per_s=required,
            supply_slack=-1.0,
            latency_slack_s=workload.steps_covered * own_s - delays.total_s,
        )
    supply_s = generation_s + workload.pause_per_step_s
    pace_s = max(own_s, supply_s)
    latency_s = own_s + delays.broadcast_s + _batch_s(delays, generation_s)
    serial_s = own_s + delays.total_s + generation_s
    late_s = _late_period_s(workload, latency_s=latency_s, pace_s=pace_s)
    period_s = max(pace_s, late_s)
    return Forecast(
        period_s=period_s,
        bound_s=max(pace_s, _late_period_s(workload, latency_s=serial_s, pace_s=pace_s)),
        utilisation=workload.train_s / period_s,
        idle_share=max(0.0, 1 - supply_s / period_s),
        wasted_share=stale_share(workload, delays),
        binds=_binds(own_s, supply_s, late_s),
        required_rollouts_per_s=required,
        supply_slack=rollouts_per_s / required - 1,
        latency_slack_s=(workload.steps_covered + 1) * pace_s - latency_s,
    )


def stale_share(workload: LearnerLoad, delays: Delays) -> float:
    """Return the share of rollouts that come too late if neither nodes nor learner wait (4).

    The mean over ``delays.rollout_times_s``, or of the one ``rollout_s`` if there are none.
    """
    period_s = workload.fed_period_s
    times_s = delays.rollout_times_s or (delays.rollout_s,)
    free_s = (workload.max_staleness - workload.publish_every) * period_s - delays.broadcast_s
    window_s = workload.publish_every * period_s
    shares = (min(1.0, max(0.0, (time_s - free_s) / window_s)) for time_s in times_s)
    return math.fsum(shares) / len(times_s)


def paper_rollouts_per_s(
    workload: LearnerLoad, delays: Delays, *, generate_while_receiving: bool = False
) -> float:
    """Return the supply that the rule of the ECHO-2 paper asks for, as reconstructed.

    ``mu >= kappa R / (kappa T - B)``: what kappa steps consume is made in what is left of
    them after the broadcast. Or, for nodes that go on generating while they receive,
    ``mu >= R / T`` if ``B <= kappa T``. Neither knows S nor g, and for kappa > 1 neither is
    enough: shown for comparison only.
    """
    window_s = workload.publish_every * workload.fed_period_s
    if delays.broadcast_s >= window_s:
        is_covered = generate_while_receiving and delays.broadcast_s == window_s
        return workload.rollouts_per_step / workload.fed_period_s if is_covered else inf
    if generate_while_receiving:
        return workload.rollouts_per_step / workload.fed_period_s
    num_rollouts = workload.publish_every * workload.rollouts_per_step
    return num_rollouts / (window_s - delays.broadcast_s)


def _steps(seconds: float, period_s: float) -> int:
    """Return how many periods cover ``seconds``; what is too much by rounding alone is not."""
    return math.ceil(seconds / period_s * (1 - _TINY))


def _batch_s(delays: Delays, generation_s: float) -> float:
    """Return the time from the first lease of a batch to its last result, if all may begin."""
    held_s = delays.occupied_s
    if held_s <= generation_s * _TINY:
        return generation_s + delays.rollout_s
    waves = math.ceil(generation_s / held_s * (1 - _TINY))
    return min(waves * held_s, generation_s + held_s) + delays.rollout_s - held_s


def _late_period_s(workload: LearnerLoad, *, latency_s: float, pace_s: float) -> float:
    """Return the period if every batch that can't begin before its version is there sets it."""
    num_steps = workload.steps_covered + 1
    num_cycle = workload.publish_every * math.ceil(num_steps / workload.publish_every)
    return (latency_s + (num_cycle - num_steps) * pace_s) / num_cycle


def _binds(own_s: float, supply_s: float, late_s: float) -> BindingLimit:
    pace_s = max(own_s, supply_s)
    if late_s > pace_s * (1 + _TINY):
        return BindingLimit.LATENCY
    return BindingLimit.SUPPLY if supply_s > own_s * (1 + _TINY) else BindingLimit.LEARNER


def _check_count(name: str, value: int, least: int) -> None:
    if not least <= value <= MAX_ROLLOUTS:
        raise ValueError(f"{name} must be from {least} to {MAX_ROLLOUTS}, got {value}")


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value <= MAX_SECONDS:
        raise ValueError(f"{name} must be from 0 to {MAX_SECONDS:g} s, got {value}")


def _check_rate(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be finite and not negative, got {value}")
