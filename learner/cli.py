"""``echo2-learner``: post-train a model with the help of a swarm.

Nothing heavy is imported before ``--help`` has answered, and no model library ever: those
live in child processes.
"""

import shlex
from pathlib import Path

import click

from echo2swarm.text.cli_errors import error_boundary, run_cli
from echo2swarm.text.cli_types import Device, FiniteRange

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="echo2swarm")
def learner() -> None:
    """Post-train a language model; the swarm's nodes make the rollouts."""


@learner.command(short_help="Train: start a run, or go on with one.")
@click.argument("config_path", metavar="[CONFIG.toml]", type=_FILE, required=False)
@click.option(
    "--run-dir",
    type=_FOLDER,
    help="Everything the run leaves goes there.  [default: runs/NAME]",
)
@click.option("--name", help="Name of the run, instead of run.name.")
@click.option("--resume", is_flag=True, help="Go on from the run directory's last checkpoint.")
@click.option(
    "--set",
    "overrides",
    metavar="TABLE.KEY=VALUE",
    multiple=True,
    help="Set one key of the configuration; may be given again.",
)
@click.option(
    "--listen",
    metavar="MULTIADDR",
    multiple=True,
    help="Listen there, instead of at swarm.listen; may be given again.",
)
@click.option(
    "--accept-changed-inputs",
    is_flag=True,
    help="With --resume: go on though data, verifier or model have changed since.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration, and stop.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the log lines on standard error.",
)
@click.option("--verbose", is_flag=True, help="Log details too.")
@click.pass_obj
def serve(
    rim: error_boundary,
    *,
    config_path: Path | None,
    run_dir: Path | None,
    name: str | None,
    resume: bool,
    overrides: tuple[str, ...],
    listen: tuple[str, ...],
    accept_changed_inputs: bool,
    dry_run: bool,
    log_format: str,
    verbose: bool,
) -> None:
    """Train as CONFIG.toml says, with the defaults for what it leaves out.

    Prints the ticket that nodes join with. Ctrl-C once finishes the update, saves a
    checkpoint and stops; twice stops at once.
    """
    from learner.commands.serve import ServeOptions, run_serve  # noqa: PLC0415

    rim.verbose = verbose
    run_serve(
        ServeOptions(
            config_path=config_path,
            run_dir=run_dir,
            name=name,
            resume=resume,
            overrides=overrides,
            listen=listen,
            accept_changed_inputs=accept_changed_inputs,
            dry_run=dry_run,
            as_json=log_format == "json",
            verbose=verbose,
        ),
        rim,
    )


@learner.command(short_help="Write a configuration with every key explained.")
@click.argument("path", type=_FILE, default=Path("run.toml"))
def init(path: Path) -> None:
    """Write a configuration with every key explained to PATH (run.toml; "-" prints it)."""
    from learner.config.text import commented, write_commented  # noqa: PLC0415

    if str(path) == "-":
        click.echo(commented(), nl=False)
        return
    write_commented(path)
    click.echo(f"wrote {path}; next: echo2-learner serve {shlex.quote(str(path))}", err=True)


@learner.command(short_help="Print the ticket of a run.")
@click.argument("run_dir", type=_FOLDER)
def ticket(run_dir: Path) -> None:
    """Print the ticket of the run in RUN_DIR; warns if it has expired."""
    from learner.commands.ticket import show_ticket  # noqa: PLC0415

    show_ticket(run_dir)


@learner.command(short_help="Write a run's weights in Hugging Face format.")
@click.argument("path", metavar="RUN_DIR|CHECKPOINT", type=_FOLDER)
@click.argument("out", metavar="OUT", type=_FOLDER)
@click.option("--step", type=int, help="Of which checkpoint.  [default: the newest]")
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Type of the weights.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@click.option("--verbose", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def export(
    rim: error_boundary,
    *,
    path: Path,
    out: Path,
    step: int | None,
    dtype: str,
    as_json: bool,
    verbose: bool,
) -> None:
    """Write a run's weights to the new folder OUT, in Hugging Face format.

    The folder is loaded again and compared with the checkpoint before it gets its name.
    """
    from learner.commands.export import ExportOptions, run_export  # noqa: PLC0415

    rim.verbose = verbose
    run_export(
        ExportOptions(path=path, out=out, step=step, dtype=dtype, as_json=as_json, verbose=verbose)
    )


@learner.command("eval", short_help="Evaluate models on held-out prompts.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--run", "run_dir", type=_FOLDER, help="Whose task.  [default: the first run named]")
@click.option("--step", type=int, help="Which checkpoint of a run.  [default: the newest]")
@click.option("--prompts", "num_prompts", type=click.IntRange(1), default=200, show_default=True)
@click.option(
    "--samples",
    "samples_per_prompt",
    type=click.IntRange(1, 255),
    default=4,
    show_default=True,
    help="Completions per prompt.",
)
@click.option("--temperature", type=FiniteRange(1e-3, 10), help="[default: the run's]")
@click.option("--max-new-tokens", type=click.IntRange(1, 131_072), help="[default: the run's]")
@click.option("--greedy/--no-greedy", "is_greedy_too", default=True, help="One likeliest, too.")
@click.option(
    "--device",
    type=Device(),
    metavar="TEXT",
    default="auto",
    show_default=True,
    help="auto, cpu, cuda or cuda:N.",
)
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads.  [default: half]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--verbose", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def evaluate(
    rim: error_boundary,
    *,
    models: tuple[str, ...],
    run_dir: Path | None,
    step: int | None,
    num_prompts: int,
    samples_per_prompt: int,
    temperature: float | None,
    max_new_tokens: int | None,
    is_greedy_too: bool,
    device: str,
    threads: int,
    as_json: bool,
    verbose: bool,
) -> None:
    """Evaluate models on prompts that the run does not train on.

    A MODEL is a run directory, a checkpoint's folder, a model folder, or "base": what the run
    began with. Several are compared with the first, on the same prompts.
    """
    from learner.commands.eval import EvalOptions, run_eval  # noqa: PLC0415

    rim.verbose = verbose
    run_eval(
        EvalOptions(
            models=models,
            run_dir=run_dir,
            step=step,
            num_prompts=num_prompts,
            samples_per_prompt=samples_per_prompt,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            is_greedy_too=is_greedy_too,
            device=device,
            threads=threads,
            as_json=as_json,
            verbose=verbose,
        )
    )


@learner.command(short_help="Make a new run that begins with a checkpoint.")
@click.argument("source", metavar="RUN_DIR", type=_FOLDER)
@click.option("--run-dir", type=_FOLDER, required=True, help="Of the new run; must not exist yet.")
@click.option("--step", type=click.IntRange(min=0), help="Which checkpoint.  [default: the newest]")
@click.option("--name", help="Name of the new run, instead of the old one's.")
@click.option(
    "--set",
    "overrides",
    metavar="TABLE.KEY=VALUE",
    multiple=True,
    help="Set one key of the new run's configuration; may be given again.",
)
@click.option(
    "--accept-changed-inputs",
    is_flag=True,
    help="Fork though data or verifier have changed since the run began.",
)
@click.option("--fresh-optimizer", is_flag=True, help="Take the weights only, no optimizer.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def fork(
    *,
    source: Path,
    run_dir: Path,
    step: int | None,
    name: str | None,
    overrides: tuple[str, ...],
    accept_changed_inputs: bool,
    fresh_optimizer: bool,
    as_json: bool,
) -> None:
    """Make a new run that begins with a checkpoint of the one in RUN_DIR."""
    from learner.commands.checkpoints import tell_fork  # noqa: PLC0415
    from learner.commands.fork import ForkOptions  # noqa: PLC0415
    from learner.commands.fork import fork_run as make  # noqa: PLC0415

    options = ForkOptions(
        source=source,
        step=step,
        run_dir=run_dir,
        name=name,
        overrides=overrides,
        fresh_optimizer=fresh_optimizer,
        accept_changed_inputs=accept_changed_inputs,
    )
    tell_fork(make(options), as_json=as_json)


@learner.command(short_help="List a run's checkpoints, read to their last byte.")
@click.argument("run_dir", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def checkpoints(*, run_dir: Path, as_json: bool) -> None:
    """List the checkpoints of the run in RUN_DIR, read to their last byte."""
    from learner.commands.checkpoints import list_checkpoints  # noqa: PLC0415

    list_checkpoints(run_dir, as_json=as_json)


def main() -> None:
    """Run the command line; ends the process."""
    run_cli(learner, program="echo2-learner")


if __name__ == "__main__":
    main()
