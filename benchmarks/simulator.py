"""Is the simulator fast enough, and does it do what live swarms do?

``python -m benchmarks.simulator [--quick] [--cell NAME ...] [--json FILE]``

First a whole swarm, ten thousand nodes for a hundred steps, in a process of its own: how long
that takes and how much memory. Then some runs of ``benchmarks.capacity``: each is run live, with
real processes that wait instead of computing, and simulated; what is held against each other is
the learner's busy share. What the simulator is told of the live swarm's own overhead comes from
a calibration run that is apart from the others.
"""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

import click
import msgspec
import trio
from rich.console import Console

from benchmarks.capacity import (
    CALIBRATION,
    CELLS,
    FULL,
    GROUP_SIZE,
    PROMPTS_PER_STEP,
    Measured,
    Overhead,
    Scale,
    config_for,
    node_rollouts_per_s,
    num_filling,
    overhead_of,
    run_once,
)
from benchmarks.capacity import Cell as LiveCell
from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.simulate import text
from echo2swarm.simulate.cell import Cell, busy_share_after, scenario_of
from echo2swarm.simulate.results import SimulationResult
from echo2swarm.simulate.scenario import load_scenario
from echo2swarm.simulate.swarm import simulate_swarm
from echo2swarm.simulate.tables import Scenario
from echo2swarm.system.errors import SwarmError
from echo2swarm.text.cli_errors import run_cli
from learner.demo.signals import until_signal

LARGE: Final = "ten-thousand"
QUICK_SHARE: Final = 0.05
QUICK_STEPS: Final = 20
LIVE_CELLS: Final = ("on-policy", "S 2", "slow load, S 2", "half of the nodes", "spread 0.5")
NUM_SEEDS: Final = 5
MAX_CPU_S: Final = 600.0
QUICK_MAX_CPU_S: Final = 40.0
MAX_RSS_GB: Final = 4.0
MAX_ERROR: Final = 0.03
MAX_WAITING: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One simulation and what it took."""

    num_nodes: int
    num_steps: int
    is_finished: bool
    ended: str
    busy_share: float
    bubble_share: float
    num_events: int
    num_rollouts: int
    cpu_s: float
    wall_s: float
    rss_gb: float


@dataclass(frozen=True, slots=True)
class Travel:
    """When the first and the last node have a version, in seconds after it was published."""

    first_s: float
    last_s: float

    @property
    def spread(self) -> float:
        """The difference, as a share of the second."""
        return 1 - self.first_s / self.last_s if self.last_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One live run, and the same simulated."""

    name: str
    live: float
    simulated: float


def large_scenario(*, share: float, num_steps: int) -> Scenario:
    """Return the scenario of ten thousand nodes, or a share of them with less to do."""
    scenario = load_scenario(text.find(LARGE))
    change = msgspec.structs.replace
    prompts_per_step = round(share * scenario.learner.prompts_per_step)
    return change(
        scenario,
        run=change(scenario.run, num_steps=num_steps),
        learner=change(scenario.learner, prompts_per_step=prompts_per_step),
        nodes=tuple(change(kind, count=round(share * kind.count)) for kind in scenario.nodes),
    )


def measure_speed(scenario: Scenario) -> Speed:
    """Simulate in a process of its own, so that its memory is its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_timed, (scenario,))


def _timed(scenario: Scenario) -> Speed:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = simulate_swarm(scenario)
    return Speed(
        num_nodes=sum(kind.num_nodes for kind in result.kinds),
        num_steps=result.num_steps,
        is_finished=result.is_finished,
        ended=result.ended,
        busy_share=result.busy_share or 0.0,
        bubble_share=1.0 if result.bubble_share is None else result.bubble_share,
        num_events=result.num_events,
        num_rollouts=sum(kind.num_trained for kind in result.kinds),
        cpu_s=time.process_time() - cpu_s,
        wall_s=time.perf_counter() - wall_s,
        rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    )


def simulated_cell(
    cell: LiveCell, scale: Scale, overhead: Overhead, travel: Travel, *, seed: int
) -> SimulationResult:
    """Return what the simulator makes of a run of ``benchmarks.capacity``."""
    config = config_for(cell, scale)
    lease_prompts = config.rollouts.lease_prompts
    return simulate_swarm(
        scenario_of(
            Cell(
                max_staleness=cell.max_staleness,
                publish_every=cell.publish_every,
                num_nodes=cell.num_nodes,
                rollouts_per_s=node_rollouts_per_s(cell, scale),
                train_s=scale.train_s,
                prompts_per_step=PROMPTS_PER_STEP,
                group_size=GROUP_SIZE,
                num_steps=config.run.num_steps,
                broadcast_s=travel.last_s,
                broadcast_spread=travel.spread,
                load_s=cell.load_s,
                batch_cv=cell.spread,
                lease_overhead_s=overhead.rollout_s,
                step_overhead_s=overhead.step_s,
                lease_prompts=None if lease_prompts == "auto" else lease_prompts,
                headroom=config.rollouts.headroom,
                heartbeat_s=config.swarm.heartbeat_s,
                seed=seed,
            )
        )
    )


def typical_overhead(calibration: Measured, scale: Scale) -> Overhead:
    """Return what the swarm itself takes, and of a lease what is usual and not the least.

    In the calibration nodes are idle for half of their time. Of the leases that did not wait
    for another on their node, the middle one is about the one that a fourth of all are below.
    """
    lease_s = GROUP_SIZE / node_rollouts_per_s(calibration.cell, scale)
    usual_s = quantiles(calibration.lease_s, n=4)[0]
    least = overhead_of(calibration, scale)
    return replace(least, rollout_s=max(0.0, usual_s - lease_s))


def travel_of(calibration: Measured, scale: Scale, overhead: Overhead) -> Travel:
    """Return what a version takes to the nodes, without what they take until they apply it.

    Live, only both together are measured. What the second comes to in the middle, for the same
    work, the simulator says itself, told that versions take no time at all; and the first node
    of all did not wait.
    """
    at_once = simulated_cell(calibration.cell, scale, overhead, Travel(0.0, 0.0), seed=0)
    middle_s = max(0.0, median(calibration.broadcast_s) - (at_once.broadcast_p50_s or 0.0))
    first_s = min(middle_s, *calibration.broadcast_s)
    return Travel(first_s=first_s, last_s=2 * middle_s - first_s)


def compare(measured: Measured, scale: Scale, overhead: Overhead, travel: Travel) -> Compared:
    """Simulate what was measured live, some times with other luck."""
    shares = []
    for seed in range(NUM_SEEDS):
        result = simulated_cell(measured.cell, scale, overhead, travel, seed=seed)
        share = busy_share_after(result, num_filling(measured.cell))
        if share is None:
            raise SwarmError(f"{measured.cell.name}, simulated: {result.ended}")
        shares.append(share)
    return Compared(name=measured.cell.name, live=measured.busy_share, simulated=fmean(shares))


async def measure_live(names: Sequence[str], scale: Scale, console: Console) -> list[Compared]:
    """Run the named cells live and simulated."""
    compared = []
    with tempfile.TemporaryDirectory(prefix="echo2-simulator-") as folder:
        calibration = await run_once(Path(folder) / "calibration", CALIBRATION, scale)
        overhead = typical_overhead(calibration, scale)
        travel = travel_of(calibration, scale, overhead)
        console.print(
            f"overhead: {overhead.step_s:.3f} s per step, {travel.first_s:.3f} to "
            f"{travel.last_s:.3f} s per version, {overhead.rollout_s:.3f} s per lease"
        )
        for number, cell in enumerate(cell for cell in CELLS if cell.name in names):
            measured = await run_once(Path(folder) / str(number), cell, scale)
            compared.append(compare(measured, scale, overhead, travel))
            console.print(
                f"{cell.name}: live {compared[-1].live:.3f}, simulated {compared[-1].simulated:.3f}"
            )
    return compared


def judge(speed: Speed, compared: Sequence[Compared], *, max_cpu_s: float) -> Outcome:
    """Hold everything against the marks."""
    rows: list[tuple[str | float, ...]] = [
        (
            f"{speed.num_nodes} nodes, {speed.num_steps} steps",
            speed.busy_share,
            "-",
            "-",
            speed.cpu_s,
            speed.rss_gb,
        )
    ]
    rows += [
        (f"live: {c.name}", c.simulated, c.live, c.simulated - c.live, "-", "-") for c in compared
    ]
    return Outcome(
        name="simulator",
        what=(
            f"{speed.num_events} events, {speed.num_rollouts} trained rollouts, {speed.ended}. "
            "Busy share of the learner, simulated and live."
        ),
        columns=("swarm", "simulated", "live", "difference", "CPU s", "GB"),
        rows=tuple(rows),
        marks=(
            Mark(name="CPU seconds", value=speed.cpu_s, at_most=max_cpu_s),
            Mark(name="memory, GB", value=speed.rss_gb, at_most=MAX_RSS_GB),
            Mark(name="all steps are done", value=float(speed.is_finished), at_least=1),
            Mark(name="share spent waiting", value=speed.bubble_share, at_most=MAX_WAITING),
            *(
                Mark(
                    name=f"{c.name}: |simulated - live|",
                    value=abs(c.simulated - c.live),
                    at_most=MAX_ERROR,
                )
                for c in compared
            ),
        ),
        figures={
            "speed": speed,
            "compared": list(compared),
        },
    )


@click.command()
@click.option("--quick", is_flag=True, help="A smaller swarm, and no live runs: under a minute.")
@click.option("--large/--no-large", default=True, help="Whether to simulate the large swarm.")
@click.option(
    "--cell",
    "names",
    multiple=True,
    type=click.Choice([cell.name for cell in CELLS]),
    help="Run only this one live; may be given several times.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, large: bool, names: Sequence[str], json_path: Path | None) -> int:
    """Measure how fast the simulator is, and how far from live runs."""
    console = Console()
    is_small = quick or not large
    scenario = large_scenario(
        share=QUICK_SHARE if is_small else 1.0, num_steps=QUICK_STEPS if is_small else 100
    )
    speed = measure_speed(scenario)
    console.print(f"{speed.num_nodes} nodes: {speed.cpu_s:.1f} s, {speed.rss_gb:.2f} GB")
    wanted = names or (() if quick else LIVE_CELLS)

    async def work() -> list[Compared]:
        return await measure_live(wanted, FULL, console)

    compared: list[Compared] = []
    if wanted:
        compared = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
    max_cpu_s = QUICK_MAX_CPU_S if is_small else MAX_CPU_S
    return finish(judge(speed, compared, max_cpu_s=max_cpu_s), json_path=json_path, console=console)


if __name__ == "__main__":
    run_cli(main, program="simulator")
