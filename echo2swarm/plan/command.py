"""What ``swarm plan`` does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from msgspec import structs
from rich.console import Console

from echo2swarm.plan.assumptions import (
    Assumptions,
    LimitsTable,
    check_assumptions,
    load_assumptions,
)
from echo2swarm.plan.measured import from_run
from echo2swarm.plan.plan import make_plan
from echo2swarm.plan.plot import write_plot
from echo2swarm.plan.text import no_plan, plan_json, plan_view
from echo2swarm.system.errors import UsageError

_FILE_COLUMNS: Final = 110
"""Where the output is a file or a pipe, lines may be so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What was asked for."""

    file: Path | None
    run_dir: Path | None
    max_staleness: int | None
    as_json: bool
    png: Path | None


def show_plan(options: PlanOptions) -> bool:
    """Print the plan; returns whether there is one.

    Raises:
        UsageError: neither assumptions nor a run were named, or the run is not there.
        ConfigError: the assumptions are wrong.
        StoreError: the run tells too little, or the picture can't be written.
    """
    assumptions = _assumptions(options)
    plan = make_plan(assumptions)
    if options.as_json:
        click.echo(plan_json(plan, assumptions))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = max(_FILE_COLUMNS, console.width)
        console.print(plan_view(plan, assumptions))
    if options.png is not None:
        file = write_plot(plan, options.png)
        click.echo(f"picture: {file}", err=True)
    if plan.best is None and options.as_json:
        click.echo(no_plan(plan), err=True)
    return plan.best is not None


def _assumptions(options: PlanOptions) -> Assumptions:
    if options.file is None and options.run_dir is None:
        raise UsageError(
            "a plan needs a file of assumptions or --run RUN_DIR; `swarm plan --example` prints a "
            "file to begin with"
        )
    base = None if options.file is None else load_assumptions(options.file)
    if options.max_staleness is not None:
        limits = LimitsTable() if base is None else base.limits
        limits = structs.replace(
            limits,
            max_staleness=options.max_staleness,
            min_staleness=min(limits.min_staleness, options.max_staleness),
        )
        base = check_assumptions(structs.replace(base or Assumptions(), limits=limits))
    if options.run_dir is not None:
        return from_run(options.run_dir, base)
    assert base is not None  # noqa: S101 - one of them was named
    return base
