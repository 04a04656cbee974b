"""``swarm``: look at a run, from anywhere or where it runs; plan one, and simulate one.

Nothing heavy is imported before ``--help`` has answered.
"""

from pathlib import Path

import click

from echo2swarm.text.cli_errors import FAILURE, run_cli
from echo2swarm.text.cli_types import FiniteRange

_FOLDER = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="echo2swarm")
def swarm() -> None:
    """Look at a run of the ECHO-2 swarm."""


@swarm.command(short_help="Show the state of a run.")
@click.argument("ticket", required=False, envvar="ECHO2_TICKET")
@click.option(
    "--run",
    "run_dir",
    type=_FOLDER,
    help="Read the state from this run directory instead of asking over the network.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON, for programs.")
@click.option("--watch", is_flag=True, help="Keep showing it until the run ends.")
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds from one look to the next, with --watch.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=1, max=600),
    default=20.0,
    show_default=True,
    help="Seconds the learner may take to be found and to answer.",
)
def status(
    *,
    ticket: str | None,
    run_dir: Path | None,
    as_json: bool,
    watch: bool,
    interval_s: float,
    timeout_s: float,
) -> int:
    """Show the state of the run that TICKET admits to ("-" reads it from standard input).

    In place of a ticket, the run's directory will do.

    Exits with 0 if the run is well, and with 1 if it has failed or its learner can't be reached.
    """
    from echo2swarm.status.command import StatusOptions, show_status  # noqa: PLC0415
    from echo2swarm.text.ticket import is_folder, read_ticket  # noqa: PLC0415

    if run_dir is None and ticket is not None and is_folder(ticket):
        run_dir = Path(ticket)
    options = StatusOptions(
        # A ticket in the environment does not overrule what was typed.
        ticket=read_ticket(ticket, command="swarm status") if ticket and run_dir is None else None,
        run_dir=run_dir,
        as_json=as_json,
        watch=watch,
        interval_s=interval_s,
        timeout_s=timeout_s,
    )
    return 0 if show_status(options) else FAILURE


@swarm.command(short_help="Write a report of a run: figures and plots.")
@click.argument("run_dir", type=_FOLDER)
@click.option(
    "--out",
    "out_dir",
    type=_FOLDER,
    help="Folder for the report.  [default: RUN_DIR/report]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, write nothing.")
def report(*, run_dir: Path, out_dir: Path | None, as_json: bool) -> None:
    """Write a report of the run in RUN_DIR: figures, plots, and what is missing."""
    from echo2swarm.report.report import figures_json, write_report  # noqa: PLC0415

    if as_json:
        click.echo(figures_json(run_dir), nl=False)
        return
    click.echo(write_report(run_dir, out_dir or run_dir / "report"))


@swarm.command(short_help="Say how many nodes a run needs, and what it will cost.")
@click.argument("assumptions", required=False, type=click.Path(path_type=Path))
@click.option(
    "--run", "run_dir", type=_FOLDER, help="Plan with what was measured in this run directory."
)
@click.option(
    "--max-staleness",
    type=click.IntRange(0, 64),
    help="The largest S to consider, instead of what ASSUMPTIONS say.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, for programs.")
@click.option(
    "--png", type=click.Path(path_type=Path), help="Draw cost over S into this file or folder."
)
@click.option("--example", is_flag=True, help="Print a file of assumptions to begin with.")
def plan(
    *,
    assumptions: Path | None,
    run_dir: Path | None,
    max_staleness: int | None,
    as_json: bool,
    png: Path | None,
    example: bool,
) -> int:
    """Say how many nodes of which kind a run needs, with which S, and what it will cost.

    Goes by the TOML file ASSUMPTIONS, by what was measured in a run, or by both: then prices,
    limits and further offers are the file's. A run directory may stand in the file's place.
    Exits with 1 if nothing that is allowed would keep the learner busy, and says what would.
    """
    if example:
        from echo2swarm.plan.assumptions import example_assumptions as example_text  # noqa: PLC0415

        click.echo(example_text(), nl=False)
        return 0
    from echo2swarm.plan.command import PlanOptions, show_plan  # noqa: PLC0415

    if run_dir is None and assumptions is not None and assumptions.is_dir():
        assumptions, run_dir = None, assumptions
    options = PlanOptions(
        file=assumptions,
        run_dir=run_dir,
        max_staleness=max_staleness,
        as_json=as_json,
        png=png,
    )
    return 0 if show_plan(options) else FAILURE


@swarm.command(short_help="Simulate a whole swarm on virtual time.")
@click.argument("scenario", required=False)
@click.option("--seed", type=click.IntRange(min=0), help="Instead of the scenario's.")
@click.option(
    "--seeds",
    "num_seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Simulate with so many seeds in a row, and show how far the results differ.",
)
@click.option(
    "--jobs",
    "num_jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Simulate so many seeds at once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON, for programs.")
@click.option("--out", "out_dir", type=_FOLDER, help="Folder for results and pictures.")
@click.option("--example", is_flag=True, help="Print a scenario to begin with.")
@click.option("--list", "is_list", is_flag=True, help="Name the scenarios that come with it.")
def simulate(
    *,
    scenario: str | None,
    seed: int | None,
    num_seeds: int,
    num_jobs: int,
    as_json: bool,
    out_dir: Path | None,
    example: bool,
    is_list: bool,
) -> int:
    """Simulate a whole swarm on virtual time, with the learner's own code and without a GPU.

    SCENARIO is a TOML file, or the name of a scenario that comes with the program. The same
    seed gives the same result. Exits with 1 if the learner got stuck, and says what it lacked.
    """
    if example or is_list:
        from echo2swarm.simulate import text  # noqa: PLC0415

        click.echo(text.example_scenario() if example else "\n".join(text.names()), nl=is_list)
        return 0
    if scenario is None:
        raise click.UsageError(
            "name a SCENARIO; `swarm simulate --list` and `--example` show what there is"
        )
    from echo2swarm.simulate.command import SimulateOptions, run_scenario  # noqa: PLC0415

    options = SimulateOptions(
        scenario=scenario,
        seed=seed,
        num_seeds=num_seeds,
        num_jobs=num_jobs,
        as_json=as_json,
        out_dir=out_dir,
    )
    return 0 if run_scenario(options) else FAILURE


def main() -> None:
    """Run the command line; ends the process."""
    run_cli(swarm, program="swarm")


if __name__ == "__main__":
    main()
