"""Does staleness keep the learner busy? Its busy share with S = 0 against S = 2.

``python -m benchmarks.overlap [--quick] [--json FILE]``

The same work twice on the same machine, in pairs: real processes, real libp2p,
a model of 0.4 MB; trainer and engines wait instead of computing, so that a few
cores can show what a cluster would. With S = 0 the learner waits for each
version to be broadcast and sampled; with S = 2 that goes on while it trains.
"""

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish, ratio
from echo2swarm.report.run_reader import read_run
from echo2swarm.report.run_record import busy_share
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
from learner.demo.swarm import open_swarm

NUM_NODES: Final = 3
STALENESS: Final = (0, 2)
MIN_RATIO: Final = 1.15
MIN_DIFFERENCE: Final = 0.10
_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much work, and how long it takes."""

    num_steps: int
    train_s: float
    rollouts_per_s: float
    """Of each node."""


FULL: Final = Load(num_steps=16, train_s=1.0, rollouts_per_s=8.0)
QUICK: Final = Load(num_steps=10, train_s=0.7, rollouts_per_s=12.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    max_staleness: int
    busy_share: float
    seconds_per_step: float
    stalest: int


def config_for(load: Load, max_staleness: int) -> LearnerConfig:
    """Return the run's configuration: nothing differs but S."""
    return LearnerConfig(
        run=RunConfig(name=f"overlap-{max_staleness}", num_steps=load.num_steps, seed=1),
        model=ModelConfig(path=str(TINY_MODEL_DIR)),
        task={"kind": "sort_digits"},
        swarm=SwarmConfig(listen=(LISTEN,), heartbeat_s=0.5),
        rollouts=RolloutConfig(
            prompts_per_step=6,
            group_size=4,
            max_staleness=max_staleness,
            max_new_tokens=4,
            lease_prompts=1,
        ),
        trainer=TrainerConfig(kind="sleep", train_s=load.train_s, threads=1),
        checkpoint=CheckpointConfig(every_steps=0),
    )


async def run_once(folder: Path, load: Load, max_staleness: int) -> Measured:
    """Run a swarm to its end and return what its own record says."""
    async with open_swarm(folder) as swarm:
        ticket = await swarm.start_learner(config_for(load, max_staleness))
        for i in range(NUM_NODES):
            await swarm.start_node(
                f"node-{i + 1}",
                ticket,
                engine="sleep",
                arguments=(
                    "--listen",
                    LISTEN,
                    "--engine-option",
                    f"rollouts_per_s={load.rollouts_per_s:g}",
                ),
            )
        await swarm.wait_finished(timeout_s=_TIMEOUT_S)
        record = read_run(swarm.run_dir)
    share = busy_share(record.steps)
    if share is None or len(record.steps) < load.num_steps:
        raise SwarmError(f"only {len(record.steps)} of {load.num_steps} steps were recorded")
    elapsed_s = record.steps[-1].end_s - record.steps[0].end_s
    return Measured(
        max_staleness=max_staleness,
        busy_share=share,
        seconds_per_step=elapsed_s / (len(record.steps) - 1),
        stalest=max((s for s, _ in record.staleness or ()), default=0),
    )


async def measure(load: Load, num_pairs: int, console: Console) -> list[Measured]:
    """Run all pairs, each in the other order than the one before."""
    found = []
    with tempfile.TemporaryDirectory(prefix="echo2-overlap-") as folder:
        for pair in range(num_pairs):
            for max_staleness in STALENESS if pair % 2 == 0 else reversed(STALENESS):
                where = Path(folder) / f"{pair}-{max_staleness}"
                result = await run_once(where, load, max_staleness)
                console.print(
                    f"pair {pair + 1} of {num_pairs}, S = {max_staleness}: "
                    f"busy {result.busy_share:.2f}, {result.seconds_per_step:.2f} s per step"
                )
                found.append(result)
    return found


def judge(found: list[Measured], load: Load) -> Outcome:
    """Hold the medians against the marks."""
    by_staleness: Mapping[int, list[Measured]] = {
        s: [m for m in found if m.max_staleness == s] for s in STALENESS
    }
    busy = {s: statistics.median(m.busy_share for m in them) for s, them in by_staleness.items()}
    low, high = (busy[s] for s in STALENESS)
    return Outcome(
        name="overlap",
        what=(
            f"Learner busy share, {NUM_NODES} nodes, {load.num_steps} steps of "
            f"{load.train_s:g} s, median of {len(by_staleness[0])} runs each."
        ),
        columns=("S", "busy share", "s per step", "stalest rollout"),
        rows=tuple(
            (
                f"S = {s}",
                busy[s],
                statistics.median(m.seconds_per_step for m in them),
                str(max(m.stalest for m in them)),
            )
            for s, them in by_staleness.items()
        ),
        marks=(
            Mark(name="busy share, S = 2 over S = 0", value=ratio(high, low), at_least=MIN_RATIO),
            Mark(name="busy share, S = 2 minus S = 0", value=high - low, at_least=MIN_DIFFERENCE),
            *(
                Mark(
                    name=f"stalest rollout trained with S = {s}",
                    value=max(m.stalest for m in them),
                    at_most=s,
                )
                for s, them in by_staleness.items()
            ),
        ),
        figures={"runs": found, "load": load},
    )


@click.command()
@click.option("--quick", is_flag=True, help="One pair of short runs: under a minute.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, json_path: Path | None) -> int:
    """Measure the learner's busy share with S = 0 and with S = 2."""
    load = QUICK if quick else FULL
    console = Console()

    async def work() -> list[Measured]:
        return await measure(load, 1 if quick else 3, console)

    found = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
    return finish(judge(found, load), json_path=json_path, console=console)


if __name__ == "__main__":
    run_cli(main, program="overlap")
