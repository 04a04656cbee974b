"""Does the capacity model tell what a live run will do? Predicted against measured busy share.

``python -m benchmarks.capacity [--quick] [--cell NAME ...] [--json FILE]``

Real processes and real libp2p; trainer and engines wait instead of computing, so that a few
cores can show what a cluster would, and so that it is known beforehand how fast everything is.
What is not known beforehand, the swarm's own overhead, is measured in one run that is apart
from the others. From that, and from what each run is configured to, its busy share is
predicted; then it is run.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import trio
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.report.run_reader import read_run
from echo2swarm.report.run_record import busy_share
from echo2swarm.scheduling.capacity import (
    Delays,
    Forecast,
    LearnerLoad,
    forecast,
    percentile_95,
    provisioned_rollouts_per_s,
)
from echo2swarm.system.errors import SwarmError
from echo2swarm.text.cli_errors import run_cli
from learner.config import (
    CheckpointConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SwarmConfig,
    TrainerConfig,
)
from learner.demo.settings import LISTEN, TINY_MODEL_DIR
from learner.demo.signals import until_signal
from learner.demo.swarm import LocalSwarm, open_swarm
from protocols.status import Outlook

PROMPTS_PER_STEP: Final = 6
GROUP_SIZE: Final = 4
ROLLOUTS_PER_STEP: Final = PROMPTS_PER_STEP * GROUP_SIZE
HEADROOM: Final = 0.1
"""h: where there is so much more than required, the learner must be busy."""
MAX_ERROR: Final = 0.05
MIN_BUSY: Final = 0.97
_TIMEOUT_S: Final = 400.0
_NORMAL_P95: Final = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run: what is configured, and nothing measured."""

    name: str
    max_staleness: int
    publish_every: int = 1
    supply: float = 1.15
    """Of all nodes together, in multiples of R/T."""
    num_nodes: int = 3
    load_s: float = 0.0
    """What the engines take to apply a version."""
    spread: float = 0.0
    """Coefficient of variation of the time that a lease takes."""


CELLS: Final = (
    Cell(name="on-policy", max_staleness=0),
    Cell(name="S 1", max_staleness=1),
    Cell(name="S 2", max_staleness=2),
    Cell(name="S 3", max_staleness=3),
    Cell(name="kappa 2", max_staleness=3, publish_every=2),
    Cell(name="kappa 4", max_staleness=3, publish_every=4),
    Cell(name="slow load, S 1", max_staleness=1, load_s=2.5),
    Cell(name="slow load, S 2", max_staleness=2, load_s=2.5),
    Cell(name="slow load, S 4", max_staleness=4, load_s=2.5),
    Cell(name="half of the nodes", max_staleness=3, supply=0.5),
    Cell(name="four fifths of the nodes", max_staleness=3, supply=0.8),
    Cell(name="twice the nodes", max_staleness=3, supply=2.0, num_nodes=6),
    Cell(name="small nodes", max_staleness=4, num_nodes=6),
    Cell(name="spread 0.5", max_staleness=4, spread=0.5),
)
QUICK_CELLS: Final = ("on-policy", "S 3")
CALIBRATION: Final = Cell(name="calibration", max_staleness=0, supply=2.0)
"""On-policy, so that nodes wait for each version, as they do where the time for it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long everything is."""

    train_s: float
    num_steps: int
    """That are measured, after those in which the pipeline fills."""


FULL: Final = Scale(train_s=2.0, num_steps=12)
QUICK: Final = Scale(train_s=1.0, num_steps=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What the swarm adds to what is configured, in seconds."""

    step_s: float
    broadcast_s: float
    rollout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    cell: Cell
    busy_share: float
    period_s: float
    metrics: list[dict[str, Any]]
    outlook: Outlook | None
    """What the learner itself said of it, from its own measurements."""
    lease_s: tuple[float, ...]
    broadcast_s: tuple[float, ...]
    """Of each node and version, those that travelled while the pipeline filled left out."""
    num_leased: int
    num_stale: int
    """Completions that were leased, and of those that were refused or dropped as too old."""


def node_rollouts_per_s(cell: Cell, scale: Scale) -> float:
    """Return what one node of the cell makes."""
    return cell.supply * ROLLOUTS_PER_STEP / scale.train_s / cell.num_nodes


def num_filling(cell: Cell) -> int:
    """Return the steps until what version 0 was enough for is used up."""
    return cell.max_staleness + 2


def config_for(cell: Cell, scale: Scale) -> LearnerConfig:
    """Return the run's configuration."""
    return LearnerConfig(
        run=RunConfig(name="capacity", num_steps=scale.num_steps + num_filling(cell), seed=1),
        model=ModelConfig(path=str(TINY_MODEL_DIR)),
        task={"kind": "sort_digits"},
        swarm=SwarmConfig(listen=(LISTEN,), heartbeat_s=0.5),
        rollouts=RolloutConfig(
            prompts_per_step=PROMPTS_PER_STEP,
            group_size=GROUP_SIZE,
            max_staleness=cell.max_staleness,
            publish_every=cell.publish_every,
            max_new_tokens=4,
            lease_prompts=1,
        ),
        trainer=TrainerConfig(kind="sleep", train_s=scale.train_s, threads=1),
        checkpoint=CheckpointConfig(every_steps=0),
    )


def predict(cell: Cell, scale: Scale, overhead: Overhead) -> tuple[Forecast, bool]:
    """Return what is to be expected of a cell, and whether the rule says that it is enough."""
    supply = node_rollouts_per_s(cell, scale) * cell.num_nodes
    workload = LearnerLoad(
        rollouts_per_step=ROLLOUTS_PER_STEP,
        train_s=scale.train_s,
        max_staleness=cell.max_staleness,
        publish_every=cell.publish_every,
        overhead_s=overhead.step_s,
        pause_s=cell.load_s,
    )
    lease_s = GROUP_SIZE / node_rollouts_per_s(cell, scale)
    delays = Delays(
        broadcast_s=overhead.broadcast_s + cell.load_s,
        rollout_s=overhead.rollout_s + lease_s * _p95_factor(cell.spread),
        occupied_s=lease_s,
    )
    needed = provisioned_rollouts_per_s(workload, delays, headroom=HEADROOM)
    return forecast(workload, delays, rollouts_per_s=supply), supply >= needed


def _p95_factor(spread: float) -> float:
    """Return the 95th percentile of a lognormal variable of mean 1."""
    variance = math.log1p(spread**2)
    return math.exp(_NORMAL_P95 * math.sqrt(variance) - variance / 2)


async def run_once(folder: Path, cell: Cell, scale: Scale) -> Measured:
    """Run one cell to its end, and return what its own record says."""
    outlooks: list[Outlook] = []
    async with open_swarm(folder) as swarm:
        ticket = await swarm.start_learner(config_for(cell, scale))
        for number in range(cell.num_nodes):
            await swarm.start_node(
                f"node-{number + 1}",
                ticket,
                engine="sleep",
                arguments=("--listen", LISTEN, *_engine_options(cell, scale)),
            )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, swarm, outlooks)
            await swarm.wait_finished(timeout_s=_TIMEOUT_S)
            nursery.cancel_scope.cancel()
        record = read_run(swarm.run_dir)
        metrics = swarm.metrics()
        granted = [e["num_completions"] for e in swarm.events("lease.granted")]
        ended = swarm.events("lease.ended")
        applied = swarm.events("version.applied")
    steps = record.steps[num_filling(cell) - 1 :]
    share = busy_share(steps)
    if share is None or len(steps) < scale.num_steps:
        raise SwarmError(f"only {len(record.steps)} steps were recorded")
    return Measured(
        cell=cell,
        busy_share=share,
        period_s=(steps[-1].end_s - steps[0].end_s) / (len(steps) - 1),
        metrics=metrics[num_filling(cell) :],
        outlook=outlooks[-1] if outlooks else None,
        lease_s=tuple(e["took_s"] for e in ended if e["outcome"] == "done"),
        broadcast_s=tuple(
            e["broadcast_s"]
            for e in applied
            if num_filling(cell) <= e["version"] < len(metrics) and e["broadcast_s"] is not None
        ),
        num_leased=sum(granted),
        num_stale=sum(r.count for r in record.refusals or () if r.reason.value == "stale"),
    )


def _engine_options(cell: Cell, scale: Scale) -> list[str]:
    options = {
        "rollouts_per_s": node_rollouts_per_s(cell, scale),
        "load_s": cell.load_s,
        "spread": cell.spread,
    }
    return [
        part for name, value in options.items() for part in ("--engine-option", f"{name}={value!r}")
    ]


async def _watch(swarm: LocalSwarm, outlooks: list[Outlook]) -> None:
    """Keep what the learner says while it works."""
    while True:
        status = swarm.status()
        if status is not None and status.outlook and status.learner_step < status.num_steps - 1:
            outlooks[:] = [status.outlook]
        await trio.sleep(0.5)


def overhead_of(measured: Measured, scale: Scale) -> Overhead:
    """Return what the calibration shows the swarm itself to take."""
    lease_s = GROUP_SIZE / node_rollouts_per_s(measured.cell, scale)
    steps_s = [m["train_s"] + m["write_s"] for m in measured.metrics]
    return Overhead(
        step_s=max(0.0, median(steps_s) - scale.train_s),
        broadcast_s=percentile_95(measured.broadcast_s)
        + median(m["publish_s"] for m in measured.metrics),
        rollout_s=max(0.0, min(measured.lease_s, default=lease_s) - lease_s),
    )


async def measure(
    cells: Sequence[Cell], scale: Scale, console: Console
) -> tuple[Overhead, list[Measured]]:
    """Calibrate, and run all cells."""
    found = []
    with tempfile.TemporaryDirectory(prefix="echo2-capacity-") as folder:
        calibration = await run_once(Path(folder) / "calibration", CALIBRATION, scale)
        overhead = overhead_of(calibration, scale)
        console.print(
            f"overhead: {overhead.step_s:.3f} s per step, {overhead.broadcast_s:.3f} s per "
            f"broadcast, {overhead.rollout_s:.3f} s per lease"
        )
        for number, cell in enumerate(cells):
            result = await run_once(Path(folder) / str(number), cell, scale)
            predicted, _ = predict(cell, scale, overhead)
            console.print(
                f"{number + 1} of {len(cells)}, {cell.name}: busy {result.busy_share:.3f}, "
                f"predicted {predicted.utilisation:.3f}"
            )
            found.append(result)
    return overhead, found


def judge(found: Sequence[Measured], scale: Scale, overhead: Overhead) -> Outcome:
    """Hold what was measured against what was predicted."""
    rows: list[tuple[str | float, ...]] = []
    marks = []
    for measured in found:
        cell = measured.cell
        predicted, is_enough = predict(cell, scale, overhead)
        error = measured.busy_share - predicted.utilisation
        said = measured.outlook.busy_share if measured.outlook else None
        rows.append(
            (
                cell.name,
                f"{cell.max_staleness} / {cell.publish_every}",
                f"{cell.num_nodes} = {cell.supply:g} R/T",
                f"{cell.load_s + overhead.broadcast_s:.2f}",
                f"{cell.spread:g}",
                predicted.utilisation,
                predicted.binds.value,
                measured.busy_share,
                error,
                "-" if said is None else f"{said:.3f}",
            )
        )
        marks.append(
            Mark(name=f"{cell.name}: |measured - predicted|", value=abs(error), at_most=MAX_ERROR)
        )
        if is_enough:
            marks.append(
                Mark(name=f"{cell.name}: enough", value=measured.busy_share, at_least=MIN_BUSY)
            )
    return Outcome(
        name="capacity",
        what=(
            f"Learner's busy share, predicted beforehand and measured, T = {scale.train_s:g} s, "
            f"R = {ROLLOUTS_PER_STEP}, {scale.num_steps} steps each. The last column is what the "
            "learner itself said while it ran, from its own measurements."
        ),
        columns=(
            "run",
            "S / kappa",
            "nodes",
            "B s",
            "spread",
            "predicted",
            "binds",
            "measured",
            "error",
            "live",
        ),
        rows=tuple(rows),
        marks=tuple(marks),
        figures={"runs": found, "scale": scale, "overhead": overhead},
    )


@click.command()
@click.option("--quick", is_flag=True, help="Two short runs: under a minute.")
@click.option(
    "--cell",
    "names",
    multiple=True,
    type=click.Choice([cell.name for cell in CELLS]),
    help="Only this one; may be given several times.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, names: Sequence[str], json_path: Path | None) -> int:
    """Measure how well the learner's busy share can be predicted."""
    scale = QUICK if quick else FULL
    wanted = names or (QUICK_CELLS if quick else [cell.name for cell in CELLS])
    cells = [cell for cell in CELLS if cell.name in wanted]
    console = Console()

    async def work() -> tuple[Overhead, list[Measured]]:
        return await measure(cells, scale, console)

    overhead, found = trio.run(
        partial(until_signal, work, on_signal=lambda: console.print("ending"))
    )
    return finish(judge(found, scale, overhead), json_path=json_path, console=console)


if __name__ == "__main__":
    run_cli(main, program="capacity")
