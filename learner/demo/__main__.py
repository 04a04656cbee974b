"""``python -m learner.demo``: watch a swarm train a model on this machine."""

from datetime import datetime
from pathlib import Path

import click

from echo2swarm.system.errors import UsageError
from echo2swarm.text.cli_errors import FAILURE, run_cli
from learner.demo.settings import FULL_STEPS, QUICK_STEPS, DemoSettings


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--run-dir",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder for all that the demo leaves.  [default: runs/demo-TIME]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--steps",
    "num_steps",
    type=click.IntRange(min=2),
    help=f"Optimizer steps.  [default: {FULL_STEPS}; with --quick {QUICK_STEPS}]",
)
@click.option("--nodes", "num_nodes", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option(
    "--model",
    default="embedded",
    show_default=True,
    help='"embedded", "tiny", a folder in Hugging Face format, or a hub id.',
)
@click.option("--quick", is_flag=True, help="Train the tiny model: a minute instead of ten.")
@click.option(
    "--kill-one-node", is_flag=True, help="kill -9 a node in mid-run, and start it again."
)
@click.option(
    "--vllm-python",
    metavar="PATH",
    help="Interpreter of an environment with vLLM: one of the nodes samples with that.",
)
def demo(
    *,
    folder: Path | None,
    seed: int,
    num_steps: int | None,
    num_nodes: int,
    model: str,
    quick: bool,
    kill_one_node: bool,
    vllm_python: str | None,
) -> int:
    """Train a small language model with a learner and nodes that run on this machine.

    Exits with 0 if the mean reward of the last ten steps is well above that of the first ten.
    """
    import trio  # noqa: PLC0415 - not needed to answer --help
    from rich.console import Console  # noqa: PLC0415

    from learner.demo.app import run_demo  # noqa: PLC0415

    now = datetime.now().astimezone()
    folder = folder or Path("runs") / f"demo-{now:%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name another folder with --run-dir")
    settings = DemoSettings(
        folder=folder,
        seed=seed,
        num_steps=num_steps or (QUICK_STEPS if quick else FULL_STEPS),
        num_nodes=num_nodes,
        model="tiny" if quick else model,
        kill_one_node=kill_one_node,
        vllm_python=vllm_python,
    )
    return 0 if trio.run(run_demo, settings, Console()) else FAILURE


if __name__ == "__main__":
    run_cli(demo, program="demo")
