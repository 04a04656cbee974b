"""``echo2-node``: contribute a machine to a swarm.

Nothing heavy is imported before ``--help`` has answered, and torch never in this process.
"""

from pathlib import Path

import click

from echo2swarm.text.cli_errors import error_boundary, run_cli
from echo2swarm.text.cli_types import Device, FiniteRange
from node.cli_machine import doctor, service
from node.control.cli import change, drain, pause, resume, status


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="echo2swarm")
def node() -> None:
    """Contribute this machine to the training of a language model."""


@node.command(short_help="Join the run that TICKET admits to.")
@click.argument("ticket", envvar="ECHO2_TICKET")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="ECHO2_STATE_DIR",
    show_envvar=True,
    help="Where this node keeps its identity and its weights; one per node.  "
    "[default: a folder of your account]",
)
@click.option("--name", help="What to call this machine.  [default: its host name]")
@click.option(
    "--listen",
    multiple=True,
    default=("/ip4/0.0.0.0/tcp/0",),
    show_default=True,
    metavar="MULTIADDR",
    help="Where to listen; may be given several times. Port 0 takes any that is free.",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="MULTIADDR",
    help="Where others reach this node, if not at the addresses of this machine.",
)
@click.option(
    "--engine",
    type=click.Choice(["transformers", "sleep", "vllm"]),
    default="transformers",
    show_default=True,
    help="What samples: a transformers model, vLLM, or nothing (sleep), for benchmarks.",
)
@click.option(
    "--engine-option",
    "engine_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the engine; a wrong name lists them all.",
)
@click.option(
    "--engines",
    "num_engines",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Engines side by side, each on GPUs of its own.",
)
@click.option(
    "--device",
    type=Device(),
    metavar="TEXT",
    help='"cpu", "cuda" or "cuda:N".  [default: a GPU if there is one]',
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="CPU threads of each engine.  [default: half of the cores, for all engines together]",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    help="Most completions that an engine samples at once.  [default: 128, vllm 256]",
)
@click.option(
    "--price",
    "usd_per_hour",
    type=FiniteRange(min=0, max=10_000),
    default=0.0,
    show_default=True,
    help="What an hour of this machine costs, in US dollars.",
)
@click.option(
    "--upload-mbit",
    type=FiniteRange(min=0.01, max=1_000_000),
    help="Most to upload of weights, in Mbit/s.  [default: 80 % of what the line was measured at]",
)
@click.option(
    "--download-mbit",
    type=FiniteRange(min=0.01, max=1_000_000),
    help="Most to download of weights, in Mbit/s.  [default: all that the line carries]",
)
@click.option(
    "--hours",
    metavar="22:00-07:00,...",
    default="",
    help="When to work, in local time; paused otherwise.  [default: always]",
)
@click.option(
    "--pause-on-gpu-use",
    is_flag=True,
    help="Pause while something else uses the GPU (NVIDIA).",
)
@click.option(
    "--gpu-memory-share",
    type=FiniteRange(min=0.05, max=1),
    help="Of the GPU's memory, for the engine.  [default: 0.9]",
)
@click.option(
    "--power-watts",
    type=FiniteRange(min=1, max=10_000),
    help="Ask the driver for this power cap of the GPU (NVIDIA; often only root may).",
)
@click.option(
    "--disk-gb",
    type=FiniteRange(min=0.001, max=1_000_000),
    help="Most that weights may take on disk.  [default: what the run needs]",
)
@click.option(
    "--relay-while-paused",
    is_flag=True,
    help="Go on passing on weights to others while paused.",
)
@click.option(
    "--hole-punching/--no-hole-punching",
    "is_hole_punching",
    default=True,
    show_default=True,
    help="Connect straight to other nodes behind routers, too; the learner says where they are.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the log on standard error.",
)
@click.option("--verbose", is_flag=True, help="Log every lease, and tracebacks of errors.")
@click.pass_obj
def join(
    rim: error_boundary | None,
    *,
    ticket: str,
    state_dir: Path | None,
    name: str | None,
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    engine: str,
    engine_options: tuple[str, ...],
    num_engines: int,
    device: str | None,
    threads: int | None,
    max_batch: int | None,
    usd_per_hour: float,
    upload_mbit: float | None,
    download_mbit: float | None,
    hours: str,
    pause_on_gpu_use: bool,
    gpu_memory_share: float | None,
    power_watts: float | None,
    disk_gb: float | None,
    relay_while_paused: bool,
    is_hole_punching: bool,
    log_format: str,
    verbose: bool,
) -> None:
    """Join the run that TICKET admits to ("-" reads it from standard input).

    Runs until the run is over. The first Ctrl-C finishes or hands back what is in hand, the
    second stops at once.
    """
    from echo2swarm.system.logging import configure_logging  # noqa: PLC0415
    from node.app import join_run  # noqa: PLC0415
    from node.options import joining_config  # noqa: PLC0415
    from node.status_line import status_line  # noqa: PLC0415

    line = status_line() if log_format == "text" else None
    config = joining_config(
        ticket=ticket,
        state_dir=state_dir,
        name=name,
        listen=listen,
        advertise=advertise,
        engine=engine,
        engine_options=engine_options,
        num_engines=num_engines,
        device=device,
        threads=threads,
        max_batch=max_batch,
        usd_per_hour=usd_per_hour,
        upload_mbit=upload_mbit,
        download_mbit=download_mbit,
        hours=hours,
        pause_on_gpu_use=pause_on_gpu_use,
        gpu_memory_share=gpu_memory_share,
        power_watts=power_watts,
        disk_gb=disk_gb,
        relay_while_paused=relay_while_paused,
        is_hole_punching=is_hole_punching,
        line=line,
    )
    if rim is not None:
        rim.verbose = verbose
        rim.crash_folder = config.state_dir
    configure_logging(verbose=verbose, as_json=log_format == "json", stream=line)
    join_run(config)


for command in (status, pause, resume, drain, change, doctor, service):
    node.add_command(command)


def main() -> None:
    """Run the command line; ends the process."""
    run_cli(node, program="echo2-node")


if __name__ == "__main__":
    main()
