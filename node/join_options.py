"""What the contributor may say to ``echo2-node join``: every option, declared once.

Nothing heavy is imported here: ``--help`` reads this module.
"""

from dataclasses import dataclass
from pathlib import Path

import click

from echo2swarm.text.cli_options import argument, option
from echo2swarm.text.cli_types import Device, FiniteRange
from node.engine.options import OPTIONS_OF


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The ticket and the options of ``join``, as they were typed."""

    ticket: str = argument(envvar="ECHO2_TICKET")
    state_dir: Path | None = option(
        "--state-dir",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="ECHO2_STATE_DIR",
        show_envvar=True,
        help="Where this node keeps its identity and its weights; one per node.  "
        "[default: a folder of your account]",
    )
    name: str | None = option("--name", help="What to call this machine.  [default: its host name]")
    listen: tuple[str, ...] = option(
        "--listen",
        multiple=True,
        default=("/ip4/0.0.0.0/tcp/0",),
        show_default=True,
        metavar="MULTIADDR",
        help="Where to listen; may be given several times. Port 0 takes any that is free.",
    )
    advertise: tuple[str, ...] = option(
        "--advertise",
        multiple=True,
        metavar="MULTIADDR",
        help="Where others reach this node, if not at the addresses of this machine.",
    )
    engine: str = option(
        "--engine",
        type=click.Choice(tuple(OPTIONS_OF)),
        default="transformers",
        show_default=True,
        help="What samples: a transformers model, vLLM, or nothing (sleep), for benchmarks.",
    )
    engine_options: tuple[str, ...] = option(
        "--engine-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set an option of the engine; a wrong name lists them all.",
    )
    num_engines: int = option(
        "--engines",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="Engines side by side, each on GPUs of its own.",
    )
    device: str | None = option(
        "--device",
        type=Device(),
        metavar="TEXT",
        help='"cpu", "cuda" or "cuda:N".  [default: a GPU if there is one]',
    )
    threads: int | None = option(
        "--threads",
        type=click.IntRange(min=1),
        help="CPU threads of each engine.  [default: half of the cores, for all engines together]",
    )
    max_batch: int | None = option(
        "--max-batch",
        type=click.IntRange(min=1),
        help="Most completions that an engine samples at once.  [default: 128, vllm 256]",
    )
    usd_per_hour: float = option(
        "--price",
        type=FiniteRange(min=0, max=10_000),
        default=0.0,
        show_default=True,
        help="What an hour of this machine costs, in US dollars.",
    )
    upload_mbit: float | None = option(
        "--upload-mbit",
        type=FiniteRange(min=0.01, max=1_000_000),
        help="Most to upload of weights, in Mbit/s.  "
        "[default: 80 % of what the line was measured at]",
    )
    download_mbit: float | None = option(
        "--download-mbit",
        type=FiniteRange(min=0.01, max=1_000_000),
        help="Most to download of weights, in Mbit/s.  [default: all that the line carries]",
    )
    hours: str = option(
        "--hours",
        metavar="22:00-07:00,...",
        default="",
        help="When to work, in local time; paused otherwise.  [default: always]",
    )
    pause_on_gpu_use: bool = option(
        "--pause-on-gpu-use",
        is_flag=True,
        help="Pause while something else uses the GPU (NVIDIA).",
    )
    gpu_memory_share: float | None = option(
        "--gpu-memory-share",
        type=FiniteRange(min=0.05, max=1),
        help="Of the GPU's memory, for the engine.  [default: 0.9]",
    )
    power_watts: float | None = option(
        "--power-watts",
        type=FiniteRange(min=1, max=10_000),
        help="Ask the driver for this power cap of the GPU (NVIDIA; often only root may).",
    )
    disk_gb: float | None = option(
        "--disk-gb",
        type=FiniteRange(min=0.001, max=1_000_000),
        help="Most that weights may take on disk.  [default: what the run needs]",
    )
    relay_while_paused: bool = option(
        "--relay-while-paused",
        is_flag=True,
        help="Go on passing on weights to others while paused.",
    )
    is_hole_punching: bool = option(
        "--hole-punching/--no-hole-punching",
        default=True,
        show_default=True,
        help="Connect straight to other nodes behind routers, too; "
        "the learner says where they are.",
    )
    log_format: str = option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of the log on standard error.",
    )
    verbose: bool = option(
        "--verbose", is_flag=True, help="Log every lease, and tracebacks of errors."
    )
