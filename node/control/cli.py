"""Commands to a node that runs on this machine; nothing heavy is imported before ``--help``."""

import re
from pathlib import Path
from typing import Final

import click

from echo2swarm.text.cli_types import FiniteRange

_UNITS_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="ECHO2_STATE_DIR",
    show_envvar=True,
    help="Which node, by its state directory.  [default: the one that runs]",
)


class Duration(click.ParamType[float]):
    """A time like ``90m`` or ``2h``, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return ``value`` in seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", str(value).strip())
        seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
        if not 0 < seconds <= 366 * 86_400:
            self.fail(f"{value!r} is not of the form 90m, 2h or 1d", param, ctx)
        return seconds


@click.command(short_help="Show what the nodes on this machine are doing.")
@state_dir_option
@click.option("--json", "as_json", is_flag=True, help="Everything, for programs: a list of nodes.")
@click.option("--watch", is_flag=True, help="Keep it on the screen, up to date.")
@click.option(
    "--interval",
    "interval_s",
    type=FiniteRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks, with --watch.",
)
def status(*, state_dir: Path | None, as_json: bool, watch: bool, interval_s: float) -> int:
    """Show what the nodes on this machine are doing, and what became of their work.

    Ends with 1 if no node runs.
    """
    from node.control.commands import show_nodes  # noqa: PLC0415

    is_any = show_nodes(state_dir, as_json=as_json, watch=watch, interval_s=interval_s)
    return 0 if is_any else 1


@click.command()
@state_dir_option
@click.option("--for", "for_s", type=Duration(), metavar="2h", help="Resume after this time.")
@click.argument("why", default="")
def pause(*, state_dir: Path | None, for_s: float | None, why: str) -> None:
    """Take no more work for now; WHY is for your own memory.

    What the engine is at is finished, all else handed back.
    """
    from node.control.commands import order  # noqa: PLC0415
    from node.control.messages import PauseCommand  # noqa: PLC0415

    click.echo(order(state_dir, PauseCommand(for_s=for_s, why=why[:200])))


@click.command()
@state_dir_option
def resume(*, state_dir: Path | None) -> None:
    """End a pause that "pause" began."""
    from node.control.commands import order  # noqa: PLC0415
    from node.control.messages import ResumeCommand  # noqa: PLC0415

    click.echo(order(state_dir, ResumeCommand()))


@click.command(short_help="Finish what is begun, hand back the rest, and end.")
@state_dir_option
def drain(*, state_dir: Path | None) -> None:
    """Finish what is begun, hand back the rest, and end: as the first Ctrl-C does."""
    from node.control.commands import order  # noqa: PLC0415
    from node.control.messages import DrainCommand  # noqa: PLC0415

    click.echo(order(state_dir, DrainCommand()))


@click.command(name="set")
@state_dir_option
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
def change(*, state_dir: Path | None, changes: tuple[str, ...]) -> None:
    """Change limits while the node runs, until it ends.

    \b
    upload-mbit, download-mbit   a number, or none
    hours                        22:00-07:00,12:00-13:00, or always
    pause-on-gpu-use             yes or no
    relay-while-paused           yes or no
    power-watts                  a number
    disk-gb                      a number, or none
    """  # noqa: D301 - click wants this very character
    from echo2swarm.system.errors import UsageError  # noqa: PLC0415
    from node.control.commands import order  # noqa: PLC0415
    from node.control.messages import SetCommand  # noqa: PLC0415

    values: dict[str, str] = {}
    for text in changes:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{text!r} is not of the form NAME=VALUE, as upload-mbit=5")
        values[name.strip()[:40]] = value[:200]
    click.echo(order(state_dir, SetCommand(values)))
