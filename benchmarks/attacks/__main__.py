"""What can strangers do to a run? Each attack against a live learner with two honest nodes.

``python -m benchmarks.attacks [--quick] [--only NAME] [--json FILE]``

Before, during and after each attack the same things are read: updates each second, memory of the
learner's processes, disk, and how long an honest newcomer takes to get in. A swarm is used for the
next attack only while it has met its marks, and for a few at most. At the end a node joins
learners whose models are traps.
"""

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import click
import trio
from rich.console import Console

from benchmarks.attacks import procs
from benchmarks.attacks.bombs import BOMBS, Bomb, spring
from benchmarks.attacks.lab import Lab, Timing, open_lab
from benchmarks.attacks.registry import ATTACKS, Attack
from benchmarks.attacks.report import Results, outcome_of
from benchmarks.attacks.verdict import find
from benchmarks.harness import finish
from echo2swarm.system.logging import configure_logging
from echo2swarm.text.cli_errors import run_cli
from learner.demo.signals import until_signal

FULL: Final = Timing(settle_steps=30, before_s=12.0, after_s=3.0, window_s=4.0)
QUICK: Final = Timing(settle_steps=3, before_s=3.0, after_s=0.0, window_s=1.5, share=0.25)
MAX_ATTACKS: Final = 4
"""On one swarm."""


async def measure(
    attacks: Sequence[Attack],
    bombs: Sequence[Bomb],
    *,
    timing: Timing,
    console: Console,
) -> Results:
    """Make all attacks, those on one task on the same swarm as long as it is well; set traps."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="echo2-attacks-") as name:
        folder = Path(name)
        for task, group in groupby(attacks, key=lambda attack: attack.task):
            todo = list(group)
            while todo:
                async with AsyncExitStack() as stack:
                    where = folder / f"{task}-{len(results.attacks)}"
                    lab = await stack.enter_async_context(open_lab(task, timing, where))
                    await _use(lab, todo, timing=timing, console=console, results=results)
        if bombs:
            async for trapped in spring(bombs, folder / "traps"):
                results.add_trap(trapped, console)
    return results


async def _use(
    lab: Lab, todo: list[Attack], *, timing: Timing, console: Console, results: Results
) -> None:
    # Starting takes a while, which is not to be taken for the attack.
    prepared = {}
    for attack in todo[:MAX_ATTACKS]:
        prepared[attack.name] = await lab.prepare(attack)
    while todo and lab.num_attacks < MAX_ATTACKS:
        attack = todo.pop(0)
        found = find(attack, await lab.under(prepared[attack.name]), share=timing.share)
        if not results.add(attack, found, console):
            return


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="Few attacks, for a few seconds each.")
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([each.name for each in (*ATTACKS, *BOMBS)]),
    help="Only this attack; may be given several times.",
)
@click.option("--urgent", "is_urgent", is_flag=True, help="Go before whatever else runs here.")
@click.option(
    "--trainer",
    type=click.Choice(["sleep", "grpo"]),
    default="sleep",
    show_default=True,
    help="Wait for each update, or compute it: for machines with processors to spare.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(
    *,
    is_quick: bool,
    names: Sequence[str],
    is_urgent: bool,
    trainer: Literal["sleep", "grpo"],
    json_path: Path | None,
) -> int:
    """Measure what strangers can do to a run."""

    def is_chosen(each: Attack | Bomb) -> bool:
        if names:
            return each.name in names
        return not is_quick or (isinstance(each, Attack) and each.is_quick)

    attacks, bombs = [a for a in ATTACKS if is_chosen(a)], [b for b in BOMBS if is_chosen(b)]
    left_out = [] if names else [each for each in (*ATTACKS, *BOMBS) if not is_chosen(each)]
    if is_urgent:
        procs.hurry()
    configure_logging(quiet=True)
    console = Console(stderr=True)
    work = partial(
        measure,
        attacks,
        bombs,
        timing=replace(QUICK if is_quick else FULL, trainer=trainer),
        console=console,
    )
    results = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
    return finish(outcome_of(results, left_out=left_out), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="attacks")
