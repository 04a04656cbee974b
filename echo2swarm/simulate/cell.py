"""Scenarios from a few numbers: a swarm like those that benchmarks run live.

Nodes are all alike and sample for a set time instead of computing, as the sleeping engine does.
"""

from dataclasses import dataclass

from echo2swarm.simulate.results import SimulationResult
from echo2swarm.simulate.tables import (
    BroadcastTable,
    NodesTable,
    Scenario,
    SimulatedLearnerTable,
    SimulatedRunTable,
    SimulatedSelectorTable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What matters for the learner's busy share."""

    max_staleness: int
    """S."""
    num_nodes: int
    rollouts_per_s: float
    """Of each node."""
    train_s: float
    """T."""
    prompts_per_step: int
    group_size: int
    num_steps: int
    publish_every: int = 1
    """kappa."""
    broadcast_s: float = 0.0
    """B without what the engine takes to load: from the end of publishing to held by all nodes."""
    broadcast_spread: float = 0.0
    """How far before the last the first node has it, as a share of that time."""
    load_s: float = 0.0
    """What the engine takes to apply a version."""
    batch_cv: float = 0.0
    """Spread of the time that a batch takes."""
    lease_overhead_s: float = 0.05
    """What a lease takes beyond sampling: two messages, and judging."""
    step_overhead_s: float = 0.0
    """What the learner does between updates."""
    publish_s: float = 0.0
    lease_prompts: int | None = 1
    headroom: float = 0.15
    concurrency: int = 128
    heartbeat_s: float = 0.5
    seed: int = 1


def scenario_of(cell: Cell) -> Scenario:
    """Return the scenario of a cell."""
    return Scenario(
        name="cell",
        run=SimulatedRunTable(num_steps=cell.num_steps, seed=cell.seed),
        learner=SimulatedLearnerTable(
            prompts_per_step=cell.prompts_per_step,
            group_size=cell.group_size,
            max_staleness=cell.max_staleness,
            publish_every=cell.publish_every,
            headroom=cell.headroom,
            lease_prompts=cell.lease_prompts,
            lease_timeout_s=120.0,
            train_s=cell.train_s,
            # Per step, though it is spent where a version is written.
            write_s=cell.step_overhead_s * cell.publish_every,
            publish_s=cell.publish_s,
            judge_s=cell.lease_overhead_s / 2,
            heartbeat_s=cell.heartbeat_s,
        ),
        broadcast=BroadcastTable(fixed_s=cell.broadcast_s, spread=cell.broadcast_spread),
        selector=SimulatedSelectorTable(every_s=5.0),
        nodes=(
            NodesTable(
                name="node",
                count=cell.num_nodes,
                rollouts_per_s=cell.rollouts_per_s,
                batch_cv=cell.batch_cv,
                concurrency=cell.concurrency,
                load_s=cell.load_s,
                rtt_s=cell.lease_overhead_s / 2,
                startup_s=0.5,
            ),
        ),
    )


def busy_share_after(result: SimulationResult, num_steps: int) -> float | None:
    """Return the busy share without the first steps, in which the pipeline fills."""
    steps = result.steps[max(0, num_steps - 1) :]
    elapsed_s = steps[-1].end_s - steps[0].end_s if len(steps) > 1 else 0.0
    return min(1.0, sum(s.train_s for s in steps[1:]) / elapsed_s) if elapsed_s > 0 else None
