"""What ``echo2-learner checkpoints`` and ``echo2-learner fork`` say."""

import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from echo2swarm.text.format import format_bytes
from learner.commands.fork import Forked
from learner.run.checkpoint_store import Unreadable, damage_of
from learner.run.run_dir import RunDir, read_run_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCheckpoint:
    """One checkpoint, for people and programs."""

    folder: str
    step: int | None
    saved_unix_s: float | None
    size_bytes: int | None
    fault: str | None
    """What is wrong with it; null if it is whole."""


def survey(run_dir: RunDir) -> list[ListedCheckpoint]:
    """Look at every checkpoint, and read all of it."""
    found = []
    for item in run_dir.checkpoints.survey():
        if isinstance(item, Unreadable):
            found.append(
                ListedCheckpoint(
                    folder=str(item.folder),
                    step=None,
                    saved_unix_s=None,
                    size_bytes=None,
                    fault=item.why,
                )
            )
        else:
            fault = damage_of(item)
            if fault is not None and not item.folder.exists():
                continue  # its run has deleted it meanwhile
            found.append(
                ListedCheckpoint(
                    folder=str(item.folder),
                    step=item.step,
                    saved_unix_s=item.position.saved_unix_s,
                    size_bytes=item.size_bytes,
                    fault=fault,
                )
            )
    return found


def list_checkpoints(folder: Path, *, as_json: bool) -> None:
    """Print what there is, and whether it is whole."""
    run_dir = read_run_dir(folder)
    found = survey(run_dir)
    origin = run_dir.forked_from
    if as_json:
        record = {
            "run_id": run_dir.run_id,
            "forked_from": origin,
            "checkpoints": [asdict(listed) for listed in found],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(record), indent=2))
        return
    if origin is not None:
        click.echo(f"{run_dir.run_id} was forked from {origin.run_id} at step {origin.step}")
    if not found:
        click.echo(f"{folder} has no checkpoint yet")
    for listed in found:
        click.echo(_line(listed))


def tell_fork(forked: Forked, *, as_json: bool) -> None:
    """Say what was made, and what to do next."""
    for step, why in forked.passed_over:
        click.echo(f"the checkpoint of step {step} was passed over: {why}", err=True)
    folder, origin = forked.run_dir.folder, forked.origin
    if as_json:
        record = {"run_id": forked.run_dir.run_id, "folder": str(folder), "forked_from": origin}
        click.echo(msgspec.json.format(msgspec.json.encode(record), indent=2))
        return
    optimizer = "a fresh optimizer" if origin.has_fresh_optimizer else "its optimizer"
    click.echo(
        f"{forked.run_dir.run_id} begins with step {origin.step} of {origin.run_id}, with "
        f"{optimizer}; next: echo2-learner serve --resume --run-dir {shlex.quote(str(folder))}"
    )


def _line(listed: ListedCheckpoint) -> str:
    if listed.step is None or listed.saved_unix_s is None or listed.size_bytes is None:
        return f"{Path(listed.folder).name}: {listed.fault}"
    at = datetime.fromtimestamp(listed.saved_unix_s, tz=UTC).astimezone()
    state = "whole" if listed.fault is None else f"DAMAGED: {listed.fault}"
    return (
        f"step {listed.step:>8}  {at:%Y-%m-%d %H:%M}  {format_bytes(listed.size_bytes):>9}  {state}"
    )
