"""How long from a ticket to the first accepted rollout?

``python -m benchmarks.join [--quick] [--vllm-python PATH] [--json FILE]``

A learner is running, and its model is converted. Then nodes join one after the other, each with
a new identity and an empty folder: it starts, finds the learner, fetches all weights over
loopback, starts its engine, samples, and is told that a rollout was accepted. The learner's update
is a wait, so that it does not compete for the cores.
"""

import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import click
import trio
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.text.cli_errors import run_cli
from learner.config import (
    CheckpointConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SwarmConfig,
    TrainerConfig,
)
from learner.demo.settings import LISTEN, TINY_MODEL_DIR
from learner.demo.signals import until_signal
from learner.demo.swarm import LocalSwarm, open_swarm
from protocols.status import NodeStatus

MAX_JOIN_S: Final = 90.0
NUM_JOINS: Final = 3
PARTS: Final = ("seen by the learner", "weights in its engine", "first accepted")
"""What is waited for, in order."""
_TIMEOUT_S: Final = 300.0
_LONG: Final = 10**6
"""Updates: the run is ended by us."""


def config_for(model: str) -> LearnerConfig:
    """Return a run that takes every rollout and waits for the next."""
    return LearnerConfig(
        run=RunConfig(name="join", num_steps=_LONG, seed=1),
        model=ModelConfig(path=model),
        task={"kind": "arithmetic"} if model == "embedded" else {"kind": "sort_digits"},
        swarm=SwarmConfig(listen=(LISTEN,), heartbeat_s=1.0),
        rollouts=RolloutConfig(
            prompts_per_step=4, group_size=4, max_staleness=2, max_new_tokens=6, lease_prompts=1
        ),
        trainer=TrainerConfig(kind="sleep", train_s=2.0, threads=1),
        checkpoint=CheckpointConfig(every_steps=0),
    )


async def measure(
    model: str, engine: str, arguments: Iterable[str], num_joins: int, console: Console
) -> list[dict[str, float]]:
    """Return, for each node that joined, the seconds until each of the parts."""
    found = []
    with tempfile.TemporaryDirectory(prefix="echo2-join-") as folder:
        async with open_swarm(Path(folder)) as swarm:
            ticket = await swarm.start_learner(config_for(model), timeout_s=_TIMEOUT_S)
            for number in range(num_joins):
                name = f"node-{number + 1}"
                started_s = trio.current_time()
                node = await swarm.start_node(
                    name,
                    ticket,
                    engine=engine,
                    arguments=("--listen", LISTEN, "--threads", "1", *arguments),
                )
                found.append(await _watch(swarm, name, started_s))
                console.print(f"{model}, {engine}: {found[-1][PARTS[-1]]:.1f} s")
                # The next one is to have the cores for itself.
                node.interrupt()
                await node.wait()
    return found


async def _watch(swarm: LocalSwarm, name: str, started_s: float) -> dict[str, float]:
    seen: dict[str, float] = {}

    def look() -> bool | None:
        status = swarm.status()
        node = next((n for n in status.nodes if n.name == name), None) if status else None
        for part in parts_done(node):
            seen.setdefault(part, trio.current_time() - started_s)
        return PARTS[-1] in seen or None

    await swarm.wait_for(look, timeout_s=_TIMEOUT_S, what=f"a rollout of {name}")
    return seen


def parts_done(node: NodeStatus | None) -> tuple[str, ...]:
    """Return the parts that a node has behind it."""
    if node is None:
        return ()
    has_accepted = node.num_accepted > 0
    done = (True, node.applied_version is not None or has_accepted, has_accepted)
    return tuple(part for part, is_done in zip(PARTS, done, strict=True) if is_done)


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="One node, a tiny model.")
@click.option("--vllm-python", help="Interpreter of an environment with vLLM: measure it, too.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, is_quick: bool, vllm_python: str | None, json_path: Path | None) -> int:
    """Measure how long nodes take to join."""
    console = Console(stderr=True)
    models = [str(TINY_MODEL_DIR)] if is_quick else [str(TINY_MODEL_DIR), "embedded"]
    engines: list[tuple[str, tuple[str, ...]]] = [("transformers", ())]
    if vllm_python:
        options = ("--engine-option", f"python={Path(vllm_python).absolute()}")
        engines.append(("vllm", (*options, "--engine-option", "max_tokens=256")))
    rows, marks, figures = [], [], {}
    for model in models:
        for engine, arguments in engines:
            what = f"{Path(model).name}, {engine}"
            num_joins = 1 if is_quick else NUM_JOINS
            work = partial(measure, model, engine, arguments, num_joins, console)
            found = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
            rows.append((what, *(f"{median(each[part] for each in found):.1f}" for part in PARTS)))
            slowest = max(each[PARTS[-1]] for each in found)
            marks.append(
                Mark(name=f"{what}: slowest to its first", value=slowest, at_most=MAX_JOIN_S)
            )
            figures[what] = found
    outcome = Outcome(
        name="join",
        what="Seconds from the start of echo2-node join, median of the nodes.",
        columns=("", *PARTS),
        rows=tuple(rows),
        marks=tuple(marks),
        figures=figures,
    )
    return finish(outcome, json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="join")
