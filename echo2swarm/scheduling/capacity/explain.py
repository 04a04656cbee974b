"""A forecast in words."""

from math import isfinite

from echo2swarm.scheduling.capacity.model import (
    BindingLimit,
    Delays,
    Forecast,
    LearnerLoad,
    min_staleness,
)
from echo2swarm.text.format import format_percent, format_rate, format_seconds


def explain_pace(
    found: Forecast, workload: LearnerLoad, delays: Delays, *, rollouts_per_s: float
) -> str:
    """Return what sets the learner's pace, and by how much, in a sentence or two."""
    busy = f"The learner trains {format_percent(found.utilisation)} of the time"
    match found.binds:
        case BindingLimit.LEARNER:
            idle = f", {format_percent(found.idle_share)} of it idle" if found.idle_share else ""
            return (
                f"{busy}: {format_rate(rollouts_per_s)} rollouts/s are there{idle}, "
                f"{format_rate(found.required_rollouts_per_s)} are required."
            )
        case BindingLimit.SUPPLY:
            required = workload.rollouts_per_step / workload.fed_period_s
            return (
                f"{busy}, for lack of rollouts: {format_rate(rollouts_per_s)}/s are there, "
                f"{format_rate(max(required, _finite(found.required_rollouts_per_s)))} required."
            )
        case BindingLimit.LATENCY:
            smallest = min_staleness(workload, delays, rollouts_per_s=rollouts_per_s)
            return (
                f"{busy}: new weights take {format_seconds(delays.broadcast_s)} and a rollout "
                f"{format_seconds(delays.rollout_s)}, which max_staleness "
                f"{workload.max_staleness} does not cover. It would be {smallest} that does."
            )


def _finite(value: float) -> float:
    return value if isfinite(value) else 0.0
