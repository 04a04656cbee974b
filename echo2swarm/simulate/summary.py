"""From what was counted to the result."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from math import fsum
from typing import TypeVar

from echo2swarm.scheduling.capacity import Delays, LearnerLoad, forecast
from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.simulate.accounts import Accounts, PromptFate
from echo2swarm.simulate.results import ForecastResult, KindResult, SimulationResult, StepResult
from echo2swarm.simulate.tables import Scenario
from protocols.reasons import Reason

Name = TypeVar("Name", bound=StrEnum)


def summarize_simulation(
    scenario: Scenario,
    accounts: Accounts,
    *,
    is_finished: bool,
    ended: str,
    duration_s: float,
    rollouts_per_s: float,
    num_events: int,
) -> SimulationResult:
    """Return the result of a simulation that is over.

    Args:
        scenario: what was simulated.
        accounts: what was counted.
        is_finished: whether all steps are done.
        ended: why it ended.
        duration_s: virtual time.
        rollouts_per_s: what the nodes that were at work in the end do, as measured.
        num_events: that happened.
    """
    steps = accounts.steps
    usd, trained_tokens = accounts.node_usd + accounts.learner_usd, _trained_tokens(accounts)
    broadcasts_s, leases_s = sorted(accounts.broadcasts_s), sorted(accounts.leases_s)
    elapsed_s = steps[-1].end_s - steps[0].end_s if len(steps) > 1 else 0.0
    return SimulationResult(
        scenario=scenario.name,
        seed=scenario.run.seed,
        is_finished=is_finished,
        ended=ended,
        num_steps=len(steps),
        duration_s=duration_s,
        busy_share=_share([step.train_s for step in steps[1:]], elapsed_s),
        bubble_share=_share([step.wait_s for step in steps[1:]], elapsed_s),
        away_s=accounts.away_s,
        period_s=elapsed_s / (len(steps) - 1) if len(steps) > 1 else None,
        staleness=dict(sorted(accounts.staleness.items())),
        num_groups_leased=len(accounts.fates) - accounts.fates.count(PromptFate.NOT_LEASED),
        num_groups_trained=accounts.fates.count(PromptFate.TRAINED),
        groups_dropped=_named(accounts.drops),
        leases_ended=_named(accounts.lease_ends),
        rollouts_refused=_named(accounts.refusals),
        num_rollouts_released=accounts.num_released,
        expired_share=_expired_share(scenario, accounts),
        kinds=_kinds(accounts),
        broadcast_p50_s=_quantile(broadcasts_s, 0.5),
        broadcast_p95_s=_quantile(broadcasts_s, 0.95),
        rollout_p50_s=_quantile(leases_s, 0.5),
        rollout_p95_s=_quantile(leases_s, 0.95),
        num_activations=accounts.num_activations,
        num_deactivations=accounts.num_deactivations,
        num_switches=accounts.num_switches,
        node_usd=accounts.node_usd,
        learner_usd=accounts.learner_usd,
        usd_per_step=usd / len(steps) if steps else None,
        usd_per_million_tokens=usd / trained_tokens * 1e6 if trained_tokens else None,
        forecast=_forecast(scenario, rollouts_per_s, broadcasts_s, leases_s),
        steps=tuple(StepResult(**asdict(step)) for step in steps),
        num_events=num_events,
    )


def _trained_tokens(accounts: Accounts) -> float:
    """Return how many tokens were trained on, if these rollouts were as long as all."""
    kinds = accounts.kinds.values()
    num_accepted = sum(kind.num_accepted for kind in kinds)
    num_trained = sum(kind.num_trained for kind in kinds)
    num_tokens = fsum(kind.num_tokens for kind in kinds)
    return num_trained * num_tokens / num_accepted if num_accepted else 0.0


def _expired_share(scenario: Scenario, accounts: Accounts) -> float:
    """Return the share of the issued rollouts that were too old to be of use."""
    num_issued = sum(kind.num_issued for kind in accounts.kinds.values())
    num_stale_groups = accounts.drops[DropReason.STALE]
    num_expired = accounts.refusals[Reason.STALE] + num_stale_groups * scenario.learner.group_size
    return min(1.0, num_expired / num_issued) if num_issued else 0.0


def _kinds(accounts: Accounts) -> tuple[KindResult, ...]:
    names = list(accounts.kind_of.values())
    return tuple(
        KindResult(kind=name, num_nodes=names.count(name), **asdict(count))
        for name, count in accounts.kinds.items()
    )


def _forecast(
    scenario: Scenario,
    rollouts_per_s: float,
    broadcasts_s: Sequence[float],
    leases_s: Sequence[float],
) -> ForecastResult | None:
    """Return what the capacity model says; None where nothing was measured."""
    broadcast_s, rollout_s = _quantile(broadcasts_s, 0.95), _quantile(leases_s, 0.95)
    if broadcast_s is None or rollout_s is None:
        return None
    learner = scenario.learner
    made = forecast(
        LearnerLoad(
            rollouts_per_step=scenario.rollouts_made_per_step,
            train_s=learner.train_s,
            max_staleness=learner.max_staleness,
            publish_every=learner.publish_every,
            overhead_s=learner.write_s / learner.publish_every,
        ),
        # As the live learner has it: a lease holds its place on a node all the while.
        Delays(broadcast_s=broadcast_s, rollout_s=rollout_s, occupied_s=rollout_s),
        rollouts_per_s=rollouts_per_s,
    )
    return ForecastResult.of(
        made, rollouts_per_s=rollouts_per_s, broadcast_s=broadcast_s, rollout_s=rollout_s
    )


def _share(parts_s: Sequence[float], elapsed_s: float) -> float | None:
    return min(1.0, fsum(parts_s) / elapsed_s) if elapsed_s > 0 else None


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _named(counts: Mapping[Name, int]) -> dict[str, int]:
    return {key.value: count for key, count in sorted(counts.items())}
