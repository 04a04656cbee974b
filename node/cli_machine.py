"""Commands about this machine: what it could do, and running a node as a service."""

from pathlib import Path
from typing import Final

import click

from echo2swarm.text.cli_types import FiniteRange
from node.control.cli import state_dir_option
from node.engine.options import OPTIONS_OF
from node.join_options import JoinOptions


@click.command(short_help="Check whether this machine would be useful.")
@click.argument("ticket", envvar="ECHO2_TICKET", required=False)
@state_dir_option
@click.option(
    "--engine",
    type=click.Choice(tuple(OPTIONS_OF)),
    default="transformers",
    show_default=True,
    help="What would sample.",
)
@click.option(
    "--engine-option",
    "engine_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the engine, as for join.",
)
@click.option("--disk-gb", type=FiniteRange(min=0.001, max=1e6), help="The quota, as for join.")
@click.option("--quick", is_flag=True, help="Only what takes no time: no engine, no link.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(
    *,
    ticket: str | None,
    state_dir: Path | None,
    engine: str,
    engine_options: tuple[str, ...],
    disk_gb: float | None,
    quick: bool,
    as_json: bool,
) -> int:
    """Check this machine; with TICKET, whether it would be useful to that run.

    Each line passes, warns or fails, and says what to do. Ends with 1 if something fails.
    """
    from echo2swarm.system.logging import configure_logging  # noqa: PLC0415
    from node.doctor.command import examine  # noqa: PLC0415
    from node.options import make_question  # noqa: PLC0415

    # What it finds is its answer.
    configure_logging(quiet=True)
    question = make_question(
        ticket,
        state_dir=state_dir,
        engine=engine,
        engine_options=engine_options,
        disk_gb=disk_gb,
        is_quick=quick,
    )
    return 0 if examine(question, as_json=as_json) else 1


@click.group()
def service() -> None:
    """Run a node as a systemd service of this user (no root needed)."""


_PRINT: Final = "--print"

_name_option = click.option(
    "--service-name",
    "name",
    default="default",
    help="For more than one on a machine.",
)


@service.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Write the unit, and the ticket to a private file.",
)
@_name_option
@click.option(_PRINT, "only_print", is_flag=True, help="Write nothing; show what would be.")
@click.argument("ticket")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF JOIN]...")
@click.pass_context
def install(
    context: click.Context, *, name: str, only_print: bool, ticket: str, options: tuple[str, ...]
) -> None:
    """Write the unit, and the ticket to a file that only you can read."""
    from node import systemd  # noqa: PLC0415
    from node.options import join_config, ticket_line  # noqa: PLC0415

    if _PRINT in options:  # join has no such option: it is ours, in the wrong place
        only_print, options = True, tuple(each for each in options if each != _PRINT)
    line = ticket_line(ticket)
    # What join would refuse, is refused here, and not in some log at the next boot.
    root = context.find_root().command
    join = root.get_command(context, "join") if isinstance(root, click.Group) else None
    if join is not None:
        typed = join.make_context("join", [line, *options], parent=context.find_root()).params
        join_config(JoinOptions(**typed))
    paths = systemd.service_paths(name, config_home=systemd.config_home())
    unit = systemd.unit_text(name, paths, command=systemd.own_command(), options=options)
    click.echo(f"# {paths.unit}\n{unit}")
    click.echo(f"# {paths.environment} (mode 0600): the ticket")
    if only_print:
        return
    was_there = paths.unit.exists()
    systemd.install_unit(paths, unit=unit, ticket=line)
    if was_there:
        click.echo(
            f"\nwritten in place of the one that was there. A node that runs goes by that until:\n"
            f"  systemctl --user daemon-reload\n"
            f"  systemctl --user restart {paths.unit_name}"
        )
        return
    click.echo(
        f"\nwritten. Start it, now and at each login:\n"
        f"  systemctl --user enable --now {paths.unit_name}\n"
        f"also while nobody is logged in:  loginctl enable-linger\n"
        f"see its log:                     journalctl --user -u {paths.unit_name} -f"
    )


@service.command()
@_name_option
def uninstall(*, name: str) -> None:
    """Stop the service, and remove its files."""
    from node import systemd  # noqa: PLC0415

    paths = systemd.service_paths(name, config_home=systemd.config_home())
    removed = systemd.uninstall_unit(paths)
    click.echo("\n".join(f"removed {path}" for path in removed) or "there was nothing to remove")


@service.command()
@_name_option
def show(*, name: str) -> int:
    """Show the unit as it is written. Ends with 1 if there is none."""
    from node import systemd  # noqa: PLC0415

    paths = systemd.service_paths(name, config_home=systemd.config_home())
    if not paths.unit.exists():
        click.echo(f"not installed: there is no {paths.unit}")
        return 1
    click.echo(f"# {paths.unit}\n{paths.unit.read_text()}")
    mode = paths.environment.stat().st_mode & 0o777 if paths.environment.exists() else None
    where = "missing" if mode is None else f"mode {mode:04o}"
    click.echo(f"# {paths.environment} ({where}): the ticket")
    return 0
