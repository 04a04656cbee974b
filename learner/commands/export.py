"""``echo2-learner export``: what it does around the process that does it."""

import datetime as dt
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio

from echo2swarm.processes.parent import open_child
from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError, DiskFullError, StoreError, UsageError
from echo2swarm.system.logging import configure_logging
from echo2swarm.text.format import format_bytes
from learner.export.card import model_card
from learner.export.messages import Export, Exported
from learner.export.source import CheckpointSource, hold_checkpoint
from learner.run.model_folder import prepare_model

_MODULE: Final = "learner.trainer.export_worker"
_NAME: Final = "export"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What the user asked for."""

    path: Path
    out: Path
    step: int | None
    dtype: str
    as_json: bool
    verbose: bool


def run_export(options: ExportOptions) -> None:
    """Do it.

    Raises:
        UsageError: there is no such checkpoint, or the folder exists.
        SwarmError: something failed; nothing is left of the folder then.
    """
    configure_logging(verbose=False, as_json=False)
    out = options.out.absolute()
    if os.path.lexists(out):
        raise UsageError(f"{out} exists already; an export never overwrites, choose another folder")
    say = partial(click.echo, err=True)
    with hold_checkpoint(options.path, step=options.step, elsewhere=out.parent) as trained:
        say(f"exporting {trained.label} to {out}")
        exported = trio.run(
            partial(
                export_checkpoint,
                trained,
                out,
                dtype=options.dtype,
                on_progress=lambda p: say(p.what),
                shows_tracebacks=options.verbose,
            )
        )
    if options.as_json:
        click.echo(msgspec.json.encode(_record(trained, out, options.dtype, exported)))
    else:
        say(
            f"wrote {out}: {exported.num_parameters:,} parameters in {options.dtype}, "
            f"{format_bytes(exported.size_bytes)}; loaded again, all {exported.num_tensors} "
            "tensors are as the checkpoint has them"
        )


async def export_checkpoint(
    trained: CheckpointSource,
    out: Path,
    *,
    dtype: str,
    on_progress: Callable[[CallProgress], None],
    shows_tracebacks: bool = False,
) -> Exported:
    """Write the weights of a checkpoint as the model folder ``out``.

    Raises:
        SwarmError: it failed; there is no such folder then.
    """
    run = trained.run
    model_dir = await prepare_model(run.config.model.path)
    card = model_card(
        trained,
        dtype=dtype,
        version=version("echo2swarm"),
        unix_day=dt.datetime.now(dt.UTC).date().isoformat(),
    )
    call = Export(
        checkpoint_dir=str(trained.checkpoint.trainer),
        model_dir=str(model_dir),
        folder=str(out),
        dtype=dtype,
        card=card,
    )
    async with open_child(_MODULE, name=_NAME, shows_tracebacks=shows_tracebacks) as child:
        try:
            return await child.call(call, Exported, on_progress=on_progress)
        except ChildError as exc:
            reason = str(exc).removeprefix(f"{_NAME}: {exc.error}: ")
            if exc.error == DiskFullError.__name__:
                raise DiskFullError(reason) from exc
            if exc.error == StoreError.__name__:
                raise StoreError(reason) from exc
            raise


def _record(trained: CheckpointSource, out: Path, dtype: str, exported: Exported) -> dict[str, Any]:
    return {
        "folder": str(out),
        "run_id": trained.run.run_dir.run_id,
        "step": trained.checkpoint.step,
        "config_sha256": trained.run.config_sha256,
        "dtype": dtype,
        **msgspec.to_builtins(exported),
    }
