"""From a model to a verdict: prepare, start, watch, report.

::

    run_demo
    +- signals             Ctrl-C and kill cancel the scope, however often they come
    +- open_swarm          ends every process with its context
       +- watch            from the first look until the learner has ended
       +- mishap           with --kill-one-node: kill -9 a node, and start it again
"""

import shlex
import shutil
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.text import Text

from echo2swarm.report.report import write_report
from echo2swarm.report.run_reader import read_run, step_record_of
from echo2swarm.system.errors import SwarmError
from echo2swarm.text.format import format_seconds, printable
from learner.demo.follow import LineFollower
from learner.demo.narrator import Narrator
from learner.demo.process import SwarmProcess
from learner.demo.settings import LISTEN, DemoSettings, demo_config, engine_of
from learner.demo.signals import until_signal
from learner.demo.swarm import LocalSwarm, open_swarm
from learner.demo.verdict import judge_learning

_PREPARE_TIMEOUT_S: Final = 900.0
_START_TIMEOUT_S: Final = 180.0
_LOOK_S: Final = 0.5
_NODES_LEAVE_S: Final = 20.0
_SILENCE_S: Final = 600.0
"""A learner that has not made a step for so long will not make one."""
_ABSENCE_S: Final = 12.0
_TAIL_LINES: Final = 15


class DemoPrinter:
    """Prints lines with the time since the start in front."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started_s = trio.current_time()

    def tell(self, line: str | Text) -> None:
        """Print one line."""
        minutes, seconds = divmod(int(trio.current_time() - self._started_s), 60)
        self.console.print(
            Text.assemble((f"{minutes:>3}:{seconds:02} ", "dim"), line),
            soft_wrap=True,
            highlight=False,
        )

    def tell_tail(self, process: SwarmProcess) -> None:
        """Print the end of a process's log."""
        self.tell(Text(f"the end of {process.log_path}:", style="red"))
        for line in process.log_tail(_TAIL_LINES):
            self.console.print(Text("    " + printable(line, max_chars=300)), soft_wrap=True)


async def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Run the demo; return whether the model has learned.

    Raises:
        SwarmError: something failed; every process has ended.
        KeyboardInterrupt: a signal asked to end; every process has ended.
    """
    teller = DemoPrinter(console)

    async def work() -> None:
        async with open_swarm(settings.folder) as swarm:
            try:
                await _perform(swarm, settings, teller)
            except SwarmError:
                _tell_failure(swarm, teller)
                raise

    try:
        await until_signal(work, on_signal=lambda: teller.tell("interrupted: ending all processes"))
    finally:
        _remove_weights(settings.folder)
    return _conclude(settings, teller)


async def _perform(swarm: LocalSwarm, settings: DemoSettings, teller: DemoPrinter) -> None:
    config = demo_config(settings)
    if settings.model != "tiny":
        await _prepare(swarm, config.model.path, teller)
    teller.tell(f"starting the learner; all of this run lies in {settings.folder}")
    ticket = await swarm.start_learner(config, timeout_s=_START_TIMEOUT_S)
    teller.tell(f"the learner's ticket: {ticket[:40]}...")
    names = [_name(i) for i in range(settings.num_nodes)]
    for name in names:
        await _start_node(swarm, name, ticket, settings)
    teller.tell(f"started {', '.join(names)}; to look at the run from another terminal:")
    teller.tell(
        Text(f"  swarm status --watch --run {shlex.quote(str(swarm.run_dir))}", style="bold")
    )
    is_mishap_due = trio.Event()

    async def mishap() -> None:
        await is_mishap_due.wait()
        await _mishap(swarm, names[-1], ticket, settings, teller)

    if settings.kill_one_node:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mishap)
            await _watch(swarm, settings, teller, is_mishap_due)
            nursery.cancel_scope.cancel()
    else:
        await _watch(swarm, settings, teller, is_mishap_due)


async def _prepare(swarm: LocalSwarm, model: str, teller: DemoPrinter) -> None:
    """Have the model's files ready before anybody waits for them."""
    teller.tell(f"preparing the model {model!r} (the first time this takes a few minutes)")
    process = await swarm.start_tool("echo2swarm.models.prepare", (model,), name="prepare")
    output = LineFollower(process.log_path)
    with trio.move_on_after(_PREPARE_TIMEOUT_S):
        while True:
            is_over = not process.is_running
            for line in output.new_text():
                teller.tell(Text("  " + printable(line, max_chars=200), style="dim"))
            if is_over:
                break
            await trio.sleep(_LOOK_S)
    if process.exit_status != 0:
        raise SwarmError(f"could not prepare the model {model!r}: {process.obituary()}")


async def _start_node(
    swarm: LocalSwarm, name: str, ticket: str, settings: DemoSettings
) -> SwarmProcess:
    kind, options = engine_of(settings, is_first=name == _name(0))
    return await swarm.start_node(
        name, ticket, engine=kind, arguments=("--listen", LISTEN, *options)
    )


def _name(index: int) -> str:
    return f"node-{index + 1}"


async def _watch(
    swarm: LocalSwarm, settings: DemoSettings, teller: DemoPrinter, is_mishap_due: trio.Event
) -> None:
    """Tell what happens until the learner has ended; then give the nodes time to leave.

    Sets ``is_mishap_due`` once a third of the steps is done.
    """
    narrator = Narrator(
        num_steps=settings.num_steps, ascii_only=not teller.console.encoding.startswith("utf")
    )
    steps = LineFollower(swarm.run_dir / "metrics.jsonl")
    told_ended: set[int] = set()
    last_news_s = told_s = trio.current_time()
    while True:
        is_over = not swarm.learner.is_running
        status = swarm.status()
        if status is not None and status.learner_step >= settings.num_steps // 3:
            is_mishap_due.set()
        lines = [] if status is None else [*narrator.nodes(status), *narrator.version(status)]
        for record in steps.new_records():
            step = step_record_of(record)
            if step is not None:
                lines.append(narrator.step(step))
                last_news_s = trio.current_time()
        if not lines and status is not None:
            lines = narrator.silence(status, silent_s=trio.current_time() - told_s)
        for line in lines:
            teller.tell(line)
            told_s = trio.current_time()
        if is_over:
            break
        for process in swarm.nodes:
            if process.exit_status and process.pid not in told_ended:
                told_ended.add(process.pid)
                teller.tell(Text(process.obituary(), style="red"))
        swarm.check()
        if trio.current_time() - last_news_s > _SILENCE_S:
            raise SwarmError(f"no step in {format_seconds(_SILENCE_S)}; logs: {swarm.log_dir}")
        await trio.sleep(_LOOK_S)
    if swarm.learner.exit_status != 0:
        raise SwarmError(swarm.learner.obituary())
    await swarm.wait_nodes_ended(timeout_s=_NODES_LEAVE_S)


async def _mishap(
    swarm: LocalSwarm,
    name: str,
    ticket: str,
    settings: DemoSettings,
    teller: DemoPrinter,
) -> None:
    """Kill a node in mid-run, wait until it is missed, and start it again as itself."""
    victim = next(p for p in swarm.nodes if p.name == name)
    teller.tell(Text(f"kill -9 {victim.pid}: {name} is gone without a word", style="bold red"))
    victim.kill()
    await trio.sleep(_ABSENCE_S)
    teller.tell(f"starting {name} again, with the identity it had")
    await _start_node(swarm, name, ticket, settings)


def _tell_failure(swarm: LocalSwarm, teller: DemoPrinter) -> None:
    """Print the log of what ended badly; of the learner if nothing did."""
    culprits = [p for p in swarm.processes if not p.is_running and p.exit_status != 0]
    for process in culprits or swarm.processes[:1]:
        teller.tell_tail(process)


def _remove_weights(folder: Path) -> None:
    """Remove the copies that were exchanged; what was trained lies in the checkpoint."""
    for copies in (folder / "run" / "weights", *folder.glob("nodes/*/runs")):
        shutil.rmtree(copies, ignore_errors=True)


def _conclude(settings: DemoSettings, teller: DemoPrinter) -> bool:
    run_dir = settings.folder / "run"
    path = write_report(run_dir, settings.folder / "report")
    record = read_run(run_dir)
    verdict = judge_learning(record.rewards, num_steps=settings.num_steps)
    teller.tell(f"report: {path}; the trained model: {run_dir / 'checkpoints'}")
    style = "bold green" if verdict.has_learned else "bold red"
    word = "It has learned" if verdict.has_learned else "It has NOT learned"
    teller.tell(Text(f"{word}: {verdict.why}.", style=style))
    return verdict.has_learned
