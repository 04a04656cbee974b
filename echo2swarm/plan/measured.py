"""Assumptions from what a run left in its directory."""

from pathlib import Path
from statistics import fmean, median
from typing import Final

from msgspec import structs

from echo2swarm.plan.assumptions import (
    Assumptions,
    LimitsTable,
    OfferTable,
    PlanLearnerTable,
    PlanRolloutTable,
    WeightsTable,
    check_assumptions,
)
from echo2swarm.report.run_reader import read_run
from echo2swarm.scheduling.capacity.model import MIN_TRAIN_S
from echo2swarm.status.client import read_status
from echo2swarm.status.health import ENDED_PHASES
from echo2swarm.system.errors import ConfigError, StoreError
from echo2swarm.system.jsonl import read_jsonl
from protocols.ids import PeerId, short
from protocols.status import NodeStatus, Quantity, StatusReply

LAST_STEPS: Final = 100
"""Steps that count."""
_MBIT: Final = 1e6 / 8
_METRICS: Final = "metrics.jsonl"
_MIN_RATE: Final = 1e-6


def from_run(run_dir: Path, base: Assumptions | None) -> Assumptions:
    """Return what was measured in a run, and from ``base`` what can't be measured.

    Prices of learner and data centre, limits, and further offers are of ``base``; the nodes of
    the run are offers beside them.

    Args:
        run_dir: the run directory.
        base: None for defaults, with S up to what the run has.

    Raises:
        UsageError: there is no such directory.
        StoreError: it does not tell what a plan needs.
        ConfigError: what it tells is contradictory.
    """
    status = read_status(run_dir)
    steps = _steps(run_dir / _METRICS)
    train_s = _typical([step.get("train_s") for step in steps])
    if train_s is None or train_s < MIN_TRAIN_S:
        raise StoreError(f"{run_dir}: no update has been measured yet; plan after the first steps")
    found = base or Assumptions(
        limits=LimitsTable(max_staleness=min(64, max(6, status.max_staleness)))
    )
    outlook = status.outlook
    rollout = outlook.rollout if outlook else None
    if rollout is None:
        raise StoreError(
            f"{run_dir}: no rollout has been measured since the learner was started last, though "
            f"{len(steps)} updates before it were: nodes are measured anew; plan again after the "
            "next steps"
        )
    try:
        return check_assumptions(
            structs.replace(
                found,
                learner=_learner(status, steps, train_s, found.learner),
                weights=_weights(run_dir, status, found.weights),
                rollouts=_rollouts(rollout, found.rollouts),
                offer=(*_offers(status), *found.offer),
            )
        )
    except ConfigError as exc:
        raise ConfigError(f"{run_dir}: {exc}") from None


def _steps(path: Path) -> list[dict[str, object]]:
    return list(read_jsonl(path))[-LAST_STEPS:]


def _learner(
    status: StatusReply, steps: list[dict[str, object]], train_s: float, base: PlanLearnerTable
) -> PlanLearnerTable:
    num_tokens, num_rollouts = (
        sum(x for step in steps if isinstance(x := step.get(key), int | float))
        for key in ("num_tokens", "num_rollouts")
    )
    upload = status.upload_bytes_per_s
    return PlanLearnerTable(
        prompts_per_step=max(1, status.rollouts_per_step // max(1, status.group_size)),
        group_size=max(1, status.group_size),
        tokens_per_rollout=(
            num_tokens / num_rollouts if num_tokens and num_rollouts else base.tokens_per_rollout
        ),
        train_s=max(1e-3, train_s),
        overhead_s=_mean([step.get("write_s") for step in steps]),
        usd_per_hour=base.usd_per_hour,
        upload_mbit=upload / _MBIT if upload else base.upload_mbit,
    )


def _weights(run_dir: Path, status: StatusReply, base: WeightsTable) -> WeightsTable:
    """Return what travels, and how long the run's broadcasts took beyond the links' bound."""
    broadcasts = read_run(run_dir).broadcasts[-LAST_STEPS:]
    sizes = [b.delta_bytes or b.payload_bytes for b in broadcasts]
    payload_bytes = _typical([size for size in sizes if size])
    broadcast_s = status.broadcast_s or 0.0
    bound_s = status.expected_broadcast_s
    load_s = base.load_s if bound_s is None else max(0.0, broadcast_s - 1.15 * bound_s)
    return WeightsTable(
        payload_mb=base.payload_mb if payload_bytes is None else payload_bytes / 1e6,
        broadcast_s=broadcast_s,
        load_s=load_s,
        pause_s=0.0,  # Nodes were measured as they are, pauses included.
    )


def _rollouts(rollout: Quantity, base: PlanRolloutTable) -> PlanRolloutTable:
    return structs.replace(base, rollout_s=rollout.p95, rollout_p50_s=rollout.p50)


def _offers(status: StatusReply) -> list[OfferTable]:
    """Return the nodes whose speed is known, each an offer of its own.

    While a run goes on, those that are there; after it, all of them: they have left with it.
    """
    is_over = status.phase in ENDED_PHASES
    return [
        _offer(node, speed)
        for node in status.nodes
        if (node.is_connected or is_over)
        and (speed := node.speed_rollouts_per_s or 0.0) > _MIN_RATE
    ]


def _offer(node: NodeStatus, speed: float) -> OfferTable:
    return OfferTable(
        name=f"{node.name[:40]} {short(PeerId(node.peer_id))}".strip(),
        rollouts_per_s=speed,
        usd_per_hour=node.usd_per_hour,
        upload_mbit=_mbit(node.upload_bytes_per_s),
        download_mbit=_mbit(node.download_bytes_per_s) or None,
    )


def _mbit(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / _MBIT


def _typical(values: list[object]) -> float | None:
    return median(numbers) if (numbers := _numbers(values)) else None


def _mean(values: list[object]) -> float:
    """Return the mean: not every step publishes, and those that don't count too."""
    return fmean(numbers) if (numbers := _numbers(values)) else 0.0


def _numbers(values: list[object]) -> list[float]:
    return [float(x) for x in values if isinstance(x, int | float) and x >= 0]
