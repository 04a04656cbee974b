"""What a simulated swarm did, as figures."""

import msgspec

from echo2swarm.scheduling.capacity import Forecast


class KindResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of node contributed."""

    kind: str
    num_nodes: int
    num_issued: int
    """Completions leased to them."""
    num_accepted: int
    num_refused: int
    num_trained: int
    num_tokens: float
    """Of accepted completions."""
    active_s: float
    """Node-seconds for which they were to work."""
    usd: float


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One update."""

    step: int
    end_s: float
    wait_s: float
    train_s: float
    write_s: float
    staleness: tuple[tuple[int, int], ...]
    """(staleness, rollouts)."""
    num_active: int
    num_present: int
    num_in_flight: int
    """Completions leased and not judged."""
    supplied_rollouts_per_s: float
    needed_rollouts_per_s: float | None
    usd: float
    """Spent so far."""


class ForecastResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the capacity model says of the same, with B, g and supply as they were measured."""

    utilisation: float
    period_s: float | None
    required_rollouts_per_s: float | None
    """None where no supply would do."""
    binds: str
    rollouts_per_s: float
    broadcast_s: float
    rollout_s: float

    @classmethod
    def of(
        cls, forecast: Forecast, *, rollouts_per_s: float, broadcast_s: float, rollout_s: float
    ) -> "ForecastResult":
        """Return a forecast and what it was made from."""
        return cls(
            utilisation=forecast.utilisation,
            period_s=_finite(forecast.period_s),
            required_rollouts_per_s=_finite(forecast.required_rollouts_per_s),
            binds=str(forecast.binds),
            rollouts_per_s=rollouts_per_s,
            broadcast_s=broadcast_s,
            rollout_s=rollout_s,
        )


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. The same scenario and seed give an equal one."""

    scenario: str
    seed: int
    is_finished: bool
    ended: str
    """Why: all steps are done, or what the learner lacked."""
    num_steps: int
    """Updates done."""
    duration_s: float
    """Virtual time."""
    busy_share: float | None
    """From the first update's end on: the share of time spent on updates; None for under two."""
    bubble_share: float | None
    """The share in which the learner waited for rollouts."""
    away_s: float
    """For which the learner was down, or trained again what it had lost."""
    period_s: float | None
    """Mean time from one update to the next."""
    staleness: dict[int, int]
    """Trained rollouts by staleness."""
    num_groups_leased: int
    num_groups_trained: int
    groups_dropped: dict[str, int]
    """By reason."""
    leases_ended: dict[str, int]
    """By how."""
    rollouts_refused: dict[str, int]
    """By reason."""
    num_rollouts_released: int
    """Completions whose lease ended before they came: they were leased again."""
    expired_share: float
    """Of the completions leased: those refused or dropped because they were too old."""
    kinds: tuple[KindResult, ...]
    broadcast_p50_s: float | None
    broadcast_p95_s: float | None
    rollout_p50_s: float | None
    rollout_p95_s: float | None
    """From a lease to its last result."""
    num_activations: int
    num_deactivations: int
    num_switches: int
    """Selections that changed the set at work."""
    node_usd: float
    learner_usd: float
    usd_per_step: float | None
    usd_per_million_tokens: float | None
    """Of trained rollouts' mean length."""
    forecast: ForecastResult | None
    steps: tuple[StepResult, ...]
    num_events: int


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
