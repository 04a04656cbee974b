"""What ``swarm simulate`` does."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from echo2swarm.simulate.plots import write_simulation_plots
from echo2swarm.simulate.results import SimulationResult
from echo2swarm.simulate.scenario import load_scenario
from echo2swarm.simulate.swarm import simulate_swarm
from echo2swarm.simulate.tables import Scenario
from echo2swarm.simulate.text import find
from echo2swarm.simulate.view import show_result, show_spread
from echo2swarm.system.errors import StoreError

_FILE_COLUMNS: Final = 110
"""Where the output is a file or a pipe, lines may be so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """What was asked for."""

    scenario: str
    """A path, or the name of one that comes with the program."""
    seed: int | None
    num_seeds: int
    num_jobs: int
    as_json: bool
    out_dir: Path | None


def run_scenario(options: SimulateOptions) -> bool:
    """Simulate, and print what came of it; returns whether every run did all its steps.

    Raises:
        UsageError: there is no such scenario.
        ConfigError: the scenario is wrong.
        StoreError: results can't be written.
    """
    scenario = load_scenario(find(options.scenario))
    first = scenario.run.seed if options.seed is None else options.seed
    scenarios = [scenario.with_seed(first + i) for i in range(options.num_seeds)]
    results = _simulate_all(scenarios, options.num_jobs)
    if options.out_dir is not None:
        _write(results, options.out_dir)
    if options.as_json:
        click.echo(_json(results).decode(), nl=False)
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(_FILE_COLUMNS, console.width)
        show_result(results[0], console)
        if len(results) > 1:
            show_spread(results, console)
        if options.out_dir is not None:
            console.print(f"results and pictures: {options.out_dir}", soft_wrap=True)
    return all(result.is_finished for result in results)


def _simulate_all(scenarios: Sequence[Scenario], num_jobs: int) -> list[SimulationResult]:
    num_steps = sum(scenario.run.num_steps for scenario in scenarios)
    with _progress(num_steps) as advance:
        if num_jobs == 1 or len(scenarios) == 1:
            return [
                simulate_swarm(scenario, on_step=lambda _: advance(1)) for scenario in scenarios
            ]
        context = multiprocessing.get_context("spawn")
        results = []
        with ProcessPoolExecutor(min(num_jobs, len(scenarios)), mp_context=context) as pool:
            for result in pool.map(simulate_swarm, scenarios):
                advance(result.num_steps)
                results.append(result)
        return results


@contextmanager
def _progress(num_steps: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is where somebody looks; yields what to tell of updates done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(
        TextColumn("simulating"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} steps"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=num_steps)
        yield lambda count: progress.advance(task, count)


def _write(results: Sequence[SimulationResult], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_bytes(_json(results))
    except OSError as exc:
        raise StoreError(f"{folder}: can't be written: {exc.strerror}") from exc
    write_simulation_plots(results[0], folder)


def _json(results: Sequence[SimulationResult]) -> bytes:
    """Return one result, or the list of several."""
    value = results[0] if len(results) == 1 else list(results)
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
