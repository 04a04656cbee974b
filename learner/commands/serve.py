"""``echo2-learner serve``: from options to a configuration, a run directory, a run."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import structlog
import trio

from echo2swarm.system.allocator import keep_heap_small
from echo2swarm.system.errors import ConfigError, UsageError
from echo2swarm.system.logging import configure_logging
from echo2swarm.text.cli_errors import error_boundary
from learner.app import Serving, serve_run
from learner.commands.dry_run import rehearse
from learner.config import LearnerConfig
from learner.config import file as config_file
from learner.config.changes import Change, changes, check_resumable
from learner.config.places import check_places
from learner.run.run_dir import RunDir, check_is_there, hold, open_run_dir

_OPTION_OF: Final = {"run.name": "--name", "swarm.listen": "--listen"}
"""Keys that have an option of their own."""
RUNS: Final = Path("runs")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the user asked for."""

    config_path: Path | None
    run_dir: Path | None
    name: str | None
    resume: bool
    overrides: tuple[str, ...]
    listen: tuple[str, ...]
    dry_run: bool
    accept_changed_inputs: bool
    as_json: bool
    verbose: bool


DETAILS: Final = frozenset(
    {"lease.granted", "lease.ended", "rollouts.judged", "groups.dropped", "evaluation.leased"}
)
"""Events of every lease: a run has thousands."""


def run_serve(options: ServeOptions, rim: error_boundary) -> None:
    """Do it; returns when the run is finished.

    Raises:
        UsageError: the options, the configuration or the run directory are not usable.
        SwarmError: something failed.
        KeyboardInterrupt: it was interrupted.
    """
    config = config_of(options)
    check_places(config)
    configure_logging(verbose=options.verbose, as_json=options.as_json, details=DETAILS)
    if options.dry_run:
        rehearse(config)
        click.echo(config_file.resolved(config), nl=False)
        return
    keep_heap_small()
    folder = _folder(options, config).absolute()
    if options.resume:
        check_is_there(folder)  # or else there is nothing to hold
    with hold(folder):
        run_dir = open_run_dir(folder, name=config.run.name, resume=options.resume)
        rim.crash_folder = run_dir.logs
        serving = Serving(
            config=config,
            run_dir=run_dir,
            resume=options.resume,
            say_ticket=_say_ticket,
            changes=_changes(run_dir, config) if options.resume else (),
            accept_changed_inputs=options.accept_changed_inputs,
        )
        try:
            trio.run(partial(serve_run, serving))
        except BaseException:
            if not options.resume and not run_dir.ticket.exists():
                run_dir.forget_start()
            raise


def config_of(options: ServeOptions) -> LearnerConfig:
    """Return the configuration that the options ask for.

    Raises:
        ConfigError: it is not valid.
    """
    overrides = list(options.overrides)
    if options.name is not None:
        overrides.append(f"run.name={options.name}")
    if options.listen:
        # JSON strings and lists are TOML, too.
        overrides.append(f"swarm.listen={json.dumps(options.listen)}")
    path = options.config_path
    if path is None and options.resume:
        # What the run was started with, unless told otherwise.
        folder = _folder(options, None)
        path = folder / RunDir.CONFIG
        if not path.exists():
            check_is_there(folder)
            raise UsageError(f"{path} is missing; restore it, or give a CONFIG.toml")
    try:
        config = config_file.load_config(path, overrides)
        if not options.resume:
            return config
        before = _folder(options, config) / RunDir.CONFIG
        return config_file.load_config(path, overrides, of_run=before)
    except ConfigError as exc:
        # Whoever typed an option knows nothing of the key that it sets.
        text = str(exc)
        given = {"run.name": options.name is not None, "swarm.listen": bool(options.listen)}
        for key, option in _OPTION_OF.items():
            if not given[key]:
                continue
            text = text.replace(f"--set {key}: {key}", option)
        raise ConfigError(text) from exc


def _changes(run_dir: RunDir, config: LearnerConfig) -> tuple[Change, ...]:
    """Return what is configured otherwise than the run was so far, if it may be.

    Raises:
        ConfigError: it may not, whatever checkpoint the run goes on from.
    """
    try:
        before = config_file.load_config(run_dir.config, environment={}, of_run=run_dir.config)
    except ConfigError as exc:
        log.warning("config.not_compared", error=str(exc), why="other software wrote it")
        return ()
    found = changes(before, config)
    check_resumable(found, num_updates_to_replay=0, folder=str(run_dir.folder))
    return found


def _folder(options: ServeOptions, config: LearnerConfig | None) -> Path:
    if options.run_dir is not None:
        return options.run_dir
    name = config.run.name if config else options.name
    if name is None:
        raise UsageError("which run is to be resumed? Give CONFIG.toml, --run-dir or --name")
    return RUNS / name


def _say_ticket(line: str) -> None:
    """Print the ticket alone to standard output, and what to do with it to standard error."""
    click.echo("contributors join with: echo2-node join TICKET", err=True)
    click.echo(line)
