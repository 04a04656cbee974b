"""Does a bound of 3 versions reach the reward of on-policy training, and sooner?

``python -m benchmarks.on_policy [--quick] [--plot FILE] [--json FILE]``  (as root)

A learner and two nodes, real processes behind emulated links of 25 Mbit/s each way. SmolLM2-135M
learns sums of reasoning-gym's chain_sum, once with S = 0 and once with S = 3, for each seed. The
learner and its trainer have one core, all nodes share another: machines of their own would overlap
in the same way, which processes that share all cores can't. There are only two hundred
such sums, so none can be held out: what a run has learned is the reward of its last batches.
``--quick`` runs a tiny model that sorts three digits instead: it shows that everything works, and
is too short to compare rewards.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

import click
import msgspec
import trio
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish
from benchmarks.wan import Link, Wan, open_wan
from echo2swarm.report.run_reader import read_run
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
from learner.demo.settings import TINY_MODEL_DIR
from learner.demo.signals import until_signal
from learner.demo.swarm import open_swarm

STALENESS: Final = (0, 3)
NUM_NODES: Final = 2
LINK: Final = Link(up_mbit_per_s=25.0, down_mbit_per_s=25.0)
MIN_NOISE: Final = 0.03
"""Two seeds more could move the mean of three by this, whatever their spread says."""
NUM_FIRST: Final = 2
NUM_LAST: Final = 6
"""Batches."""
MIN_GAIN: Final = 0.05
"""Of each run, over the weights that it began with."""
MAX_TIME_RATIO: Final = 1.0
_PORT: Final = 4150
_RUN_TIMEOUT_S: Final = 3000.0
_LEARNER_CORE, _NODE_CORE = "0", "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is run."""

    model: str
    task: dict[str, Any]
    learning_rate: float
    num_steps: int
    prompts_per_step: int
    max_new_tokens: int
    seeds: tuple[int, ...]
    is_smoke: bool = False
    """Too short to compare runs."""


FULL: Final = Study(
    model="embedded",
    task={
        "kind": "reasoning_gym",
        "dataset": "chain_sum",
        "dataset_options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        "template": "few_shot",
        "example": "{expression} = {answer}",
        "answer_in": "first_line",
    },
    learning_rate=1e-5,
    num_steps=25,
    prompts_per_step=16,
    max_new_tokens=6,
    seeds=(1, 2, 3),
)
QUICK: Final = Study(
    model=str(TINY_MODEL_DIR),
    task={"kind": "sort_digits"},
    learning_rate=3e-4,
    num_steps=40,
    prompts_per_step=16,
    max_new_tokens=4,
    seeds=(1,),
    is_smoke=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, and what came of it."""

    max_staleness: int
    seed: int
    end_s: tuple[float, ...]
    """When each update was done, since a node began with the first lease."""
    rewards: tuple[float, ...]
    """Of each update's batch."""
    mean_staleness: float
    broadcast_s: float
    """Median over versions, from published to applied by the last node."""
    delta_bytes: float
    """Median over versions."""

    @property
    def base_reward(self) -> float:
        """Of the first batches, most of which come from the weights that the run began with."""
        return fmean(self.rewards[:NUM_FIRST])

    @property
    def reward(self) -> float:
        """Of the last batches."""
        return fmean(self.rewards[-NUM_LAST:])

    @property
    def wall_s(self) -> float:
        """Until the last update."""
        return self.end_s[-1]


def config_for(study: Study, *, max_staleness: int, seed: int, address: str) -> LearnerConfig:
    """Return the run's configuration: between runs of a seed nothing differs but S."""
    return LearnerConfig(
        run=RunConfig(name=f"on-policy-{max_staleness}", num_steps=study.num_steps, seed=seed),
        model=ModelConfig(path=study.model),
        task=study.task,
        swarm=SwarmConfig(listen=(f"/ip4/{address}/tcp/{_PORT}",), heartbeat_s=1.0),
        rollouts=RolloutConfig(
            prompts_per_step=study.prompts_per_step,
            group_size=8,
            max_staleness=max_staleness,
            max_new_tokens=study.max_new_tokens,
            lease_prompts=study.prompts_per_step // 4,
            lease_timeout_s=300.0,
        ),
        trainer=TrainerConfig(learning_rate=study.learning_rate, warmup_steps=5, threads=1),
        checkpoint=CheckpointConfig(every_steps=0),
    )


def placed(wan: Wan, name: str) -> Sequence[str]:
    """Return what puts a process behind its link, and on its core."""
    is_node = name.startswith("node-")
    host = int(name.removeprefix("node-")) if is_node else 0
    core = _NODE_CORE if is_node else _LEARNER_CORE
    return wan.command(host, ["taskset", "--cpu-list", core])


async def run_once(study: Study, *, max_staleness: int, seed: int, folder: Path) -> Run:
    """Train a policy, and return what came of it."""
    with open_wan([LINK] * (1 + NUM_NODES)) as wan:
        async with open_swarm(folder, through=partial(placed, wan)) as swarm:
            config = config_for(
                study, max_staleness=max_staleness, seed=seed, address=wan.address(0)
            )
            ticket = await swarm.start_learner(config, timeout_s=300)
            for number in range(1, NUM_NODES + 1):
                listen = f"/ip4/{wan.address(number)}/tcp/0"
                await swarm.start_node(
                    f"node-{number}", ticket, arguments=("--listen", listen, "--threads", "1")
                )
            await swarm.wait_finished(timeout_s=_RUN_TIMEOUT_S)
    return run_of(folder / "run", max_staleness, seed)


def run_of(run_dir: Path, max_staleness: int, seed: int) -> Run:
    """Read what a run tells of itself.

    Raises:
        SwarmError: it tells less than is needed.
    """
    record = read_run(run_dir)
    leases = [span.start_s for _, spans in record.generation for span in spans]
    if not leases or len(record.steps) < record.num_steps:
        raise SwarmError(f"{run_dir} tells of {len(record.steps)} of {record.num_steps} updates")
    begin_s = min(leases)
    staleness = record.staleness or ()
    num_trained = sum(number for _, number in staleness)
    return Run(
        max_staleness=max_staleness,
        seed=seed,
        end_s=tuple(step.end_s - begin_s for step in record.steps),
        rewards=tuple(record.rewards),
        mean_staleness=sum(s * number for s, number in staleness) / max(1, num_trained),
        broadcast_s=_median([each.spread_s for each in record.broadcasts]),
        delta_bytes=_median([each.delta_bytes for each in record.broadcasts]),
    )


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else float("nan")


def noise_of(runs: Sequence[Run], others: Sequence[Run]) -> float:
    """Return two standard errors of the difference of both means; at least ``MIN_NOISE``."""
    squares = [
        stdev(run.reward for run in each) ** 2 / len(each)
        for each in (runs, others)
        if len(each) > 1
    ]
    return max(MIN_NOISE, 2 * sqrt(sum(squares)))


def outcome_of(study: Study, runs: Sequence[Run]) -> Outcome:
    """Return the table and the marks."""
    by_staleness = {s: [run for run in runs if run.max_staleness == s] for s in STALENESS}
    on_policy, stale = (by_staleness[s] for s in STALENESS)
    ratios = [b.wall_s / a.wall_s for a, b in zip(on_policy, stale, strict=True)]
    rows = [
        (
            f"S = {run.max_staleness}, seed {run.seed}",
            f"{run.base_reward:.3f}",
            f"{run.reward:.3f}",
            f"{run.wall_s:.0f}",
            f"{run.mean_staleness:.2f}",
            f"{run.broadcast_s:.1f}",
            f"{run.delta_bytes / 1e6:.2f}",
        )
        for run in runs
    ]
    least_gain = min(run.reward - run.base_reward for run in runs)
    marks = [Mark(name="least gain of a run", value=least_gain, at_least=MIN_GAIN)]
    if not study.is_smoke:
        difference = fmean(r.reward for r in stale) - fmean(r.reward for r in on_policy)
        noise = noise_of(on_policy, stale)
        marks += [
            Mark(name="reward of S = 3 less that of S = 0", value=difference, at_least=-noise),
            Mark(
                name="time of S = 3 over S = 0, median",
                value=median(ratios),
                at_most=MAX_TIME_RATIO,
            ),
        ]
    return Outcome(
        name="on_policy",
        what=(
            f"{study.num_steps} updates of {study.prompts_per_step} x 8 completions, "
            f"{NUM_NODES} nodes behind {LINK.up_mbit_per_s:g} Mbit/s each way. Rewards are those "
            f"of the first {NUM_FIRST} and of the last {NUM_LAST} batches; seconds are from the "
            "first lease to the last update."
        ),
        columns=("", "before", "after", "s", "staleness", "broadcast s", "delta MB"),
        rows=tuple(rows),
        marks=tuple(marks),
        figures={"runs": [asdict(run) for run in runs], "ratios": ratios},
    )


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw the reward of each run's batches over time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    from echo2swarm.report.run_record import moving_mean  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        is_first = run.seed == runs[0].seed
        axes.plot(
            [s / 60 for s in run.end_s],
            moving_mean(run.rewards, 4),
            color=f"C{STALENESS.index(run.max_staleness)}",
            label=f"S = {run.max_staleness}" if is_first else None,
            alpha=0.8,
        )
    axes.set(xlabel="minutes", ylabel="reward, mean of 4 updates", ylim=(0, 1))
    axes.legend(loc="lower right", frameon=False)
    FigureCanvasAgg(figure).print_png(path)


async def run_all(study: Study, *, keep: Path, tell: Callable[[str], None]) -> list[Run]:
    """Run it all; a run whose result lies in ``keep`` already is not run again."""
    runs = []
    for seed in study.seeds:
        for max_staleness in STALENESS:
            result = keep / f"seed-{seed}-s{max_staleness}.json"
            if result.exists():
                runs.append(msgspec.json.decode(result.read_bytes(), type=Run))
                tell(f"S = {max_staleness}, seed {seed}: found in {result}")
                continue
            tell(f"S = {max_staleness}, seed {seed}")
            with tempfile.TemporaryDirectory(prefix="echo2-on-policy-") as folder:
                run = await run_once(
                    study, max_staleness=max_staleness, seed=seed, folder=Path(folder)
                )
            temporary = result.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.encode(run))
            os.replace(temporary, result)
            tell(f"reward {run.base_reward:.3f} -> {run.reward:.3f} in {run.wall_s:.0f} s")
            runs.append(run)
    return runs


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="A tiny model, few updates, one seed.")
@click.option("--seed", "seeds", type=int, multiple=True, help="May be repeated.  [default: 1 2 3]")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the results of finished runs here, and go on from them.",
)
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(
    *,
    is_quick: bool,
    seeds: tuple[int, ...],
    keep: Path | None,
    plot_path: Path | None,
    json_path: Path | None,
) -> int:
    """Compare on-policy training with a staleness bound of 3."""
    study = QUICK if is_quick else FULL
    study = replace(study, seeds=seeds or study.seeds)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="echo2-on-policy-") as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        work = partial(run_all, study, keep=folder, tell=console.print)
        runs = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
    if plot_path is not None:
        draw(runs, plot_path)
    return finish(outcome_of(study, runs), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="on_policy")
