"""How long is a learner away when it is killed, and does it stay as small as it was?

``python -m benchmarks.resume [--quick] [--png FILE] [--json FILE]``

A learner with the real trainer and the tiny model, and a node with the real engine. The
learner and all that it started are killed with ``kill -9`` several times, and started again
with ``--resume``; then it trains on to its last step, while the memory of each of its
processes is noted.
"""

import os
import signal
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
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

MAX_AWAY_S: Final = 30.0
"""Importing torch on a small machine is most of it."""
MAX_GROWTH: Final = 0.05
"""Of each process, from a fifth of the steps to the end."""
STEPS_BEFORE_KILL: Final = 5
ROLES: Final = {
    "learner.cli": "learner",
    "learner.trainer": "trainer",
    "learner.scoring": "scorer",
    "node.cli": "node",
    "node.engine": "engine",
}
PARTS: Final = ("run.started", "run.resumed", "training.started", "training.done")
"""Events of a learner that comes back, in their order."""
_TIMEOUT_S: Final = 1500.0


@dataclass(slots=True)
class Measured:
    """What was seen."""

    away_s: list[dict[str, float]] = field(default_factory=list)
    """Of each kill: seconds until each of the events."""
    rss: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each role: step, and bytes."""
    step_s: float = 0.0


def config_for(num_steps: int) -> LearnerConfig:
    """Return a run that stays where it is found, with small updates."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return LearnerConfig(
        run=RunConfig(name="resume", num_steps=num_steps, seed=1),
        model=ModelConfig(path=str(TINY_MODEL_DIR)),
        task={"kind": "sort_digits"},
        swarm=SwarmConfig(listen=(f"/ip4/127.0.0.1/tcp/{port}",), heartbeat_s=0.5),
        rollouts=RolloutConfig(
            prompts_per_step=4, group_size=4, max_staleness=2, max_new_tokens=4, lease_prompts=4
        ),
        trainer=TrainerConfig(learning_rate=1e-5, threads=1),
        checkpoint=CheckpointConfig(every_steps=10),
    )


async def measure(*, num_steps: int, num_kills: int, folder: Path, console: Console) -> Measured:
    """Run it all once."""
    config, found = config_for(num_steps), Measured()
    async with open_swarm(folder) as swarm:
        ticket = await swarm.start_learner(config)
        await swarm.start_node("node", ticket, arguments=("--listen", LISTEN, "--threads", "1"))
        for number in range(num_kills):
            await until_step(swarm, (number + 1) * STEPS_BEFORE_KILL)
            found.away_s.append(await kill_and_resume(swarm, config))
            console.print(f"killed: a new update after {found.away_s[-1][PARTS[-1]]:.1f} s")
        await note_memory(swarm, found, console)
        await swarm.wait_finished(timeout_s=60)
    return found


async def kill_and_resume(swarm: LocalSwarm, config: LearnerConfig) -> dict[str, float]:
    """Kill the learner with its children; return seconds until each event of its return."""
    learner = swarm.learner
    for pid in swarm.pids():
        if role_of(pid) in ("learner", "trainer", "scorer"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    killed_unix_s = time.time()
    await learner.wait()
    num_before = len(swarm.events())
    await swarm.launch_learner(config, arguments=("--resume",))
    seen: dict[str, float] = {}

    def look() -> bool | None:
        for event in swarm.events()[num_before:]:
            if event["event"] in PARTS:
                seen.setdefault(event["event"], event["unix_s"] - killed_unix_s)
        return PARTS[-1] in seen or None

    await swarm.wait_for(look, timeout_s=180, what="a new update")
    return seen


async def note_memory(swarm: LocalSwarm, found: Measured, console: Console) -> None:
    """Note the memory of each process about once a second, until the last step."""
    first_step, started_s, told = None, trio.current_time(), 0
    while swarm.learner.is_running:
        status = swarm.status()
        if status is not None:
            step = status.learner_step
            if first_step is None:
                first_step, started_s = step, trio.current_time()
            for role, num_bytes in memory_by_role(swarm).items():
                found.rss[role].append((step, num_bytes))
            if step > first_step:
                found.step_s = (trio.current_time() - started_s) / (step - first_step)
            if step >= told + 100:
                told = step
                console.print(f"step {step} of {status.num_steps}")
            if step >= status.num_steps:
                return
        await trio.sleep(1.0)


async def until_step(swarm: LocalSwarm, step: int) -> None:
    """Return when so many updates are done."""
    await swarm.wait_status(
        lambda status: status.learner_step >= step, timeout_s=180, what=f"step {step}"
    )


def role_of(pid: int) -> str | None:
    """Return what a process of the swarm is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return None
    name = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return next((role for start, role in ROLES.items() if name.startswith(start)), None)


def memory_by_role(swarm: LocalSwarm) -> dict[str, int]:
    """Return the memory that each of the swarm's processes holds."""
    found: dict[str, int] = defaultdict(int)
    for pid in swarm.pids():
        role = role_of(pid)
        with suppress(OSError, IndexError, ValueError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            if role is not None:
                found[role] += pages * os.sysconf("SC_PAGE_SIZE")
    return found


def growth(samples: list[tuple[int, int]]) -> float:
    """Return by which share memory grew from a fifth of the steps to the end."""
    first, last = samples[0][0], samples[-1][0]
    begin = [b for step, b in samples if 0.2 <= (step - first) / max(1, last - first) <= 0.3]
    end = [b for step, b in samples if (step - first) / max(1, last - first) >= 0.9]
    if not begin or not end:
        return float("nan")
    return statistics.median(end) / statistics.median(begin) - 1


def outcome_of(found: Measured, *, num_steps: int) -> Outcome:
    """Return the table and the marks."""
    medians = {p: statistics.median(each[p] for each in found.away_s) for p in PARTS}
    rows = [(f"killed, until {part}", f"{seconds:.1f} s", "") for part, seconds in medians.items()]
    rows += [
        (
            f"memory of the {role}",
            f"{statistics.median(b for _, b in samples) / 1e6:.0f} MB",
            f"{100 * growth(samples):+.1f} %",
        )
        for role, samples in sorted(found.rss.items())
    ]
    return Outcome(
        name="resume",
        what=(
            f"Median of {len(found.away_s)} kills of the learner and its children; memory over "
            f"the rest of {num_steps} steps of {found.step_s:.2f} s."
        ),
        columns=("", "value", "growth"),
        rows=tuple(rows),
        marks=(
            Mark(
                name="killed, until a new update, s", value=medians[PARTS[-1]], at_most=MAX_AWAY_S
            ),
            *(
                Mark(name=f"growth of the {role}", value=growth(samples), at_most=MAX_GROWTH)
                for role, samples in sorted(found.rss.items())
            ),
        ),
        figures={"away_s": found.away_s, "rss": dict(found.rss)},
    )


def draw(found: Measured, path: Path) -> None:
    """Draw the memory of each process over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for role, samples in sorted(found.rss.items()):
        axes.plot([s for s, _ in samples], [b / 1e6 for _, b in samples], label=role)
    axes.set(xlabel="step", ylabel="resident memory, MB", ylim=(0, None))
    axes.legend(loc="center right", frameon=False)
    FigureCanvasAgg(figure).print_png(path)


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="One kill, 40 steps.")
@click.option("--png", "png_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, is_quick: bool, png_path: Path | None, json_path: Path | None) -> int:
    """Measure how long a killed learner is away, and whether its memory stays flat."""
    num_steps, num_kills = (40, 1) if is_quick else (500, 3)
    console = Console(stderr=True)

    async def work() -> Measured:
        with tempfile.TemporaryDirectory(prefix="echo2-resume-") as folder:
            with trio.fail_after(_TIMEOUT_S):
                return await measure(
                    num_steps=num_steps,
                    num_kills=num_kills,
                    folder=Path(folder),
                    console=console,
                )

    found = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
    if png_path is not None:
        draw(found, png_path)
    return finish(outcome_of(found, num_steps=num_steps), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="resume")
