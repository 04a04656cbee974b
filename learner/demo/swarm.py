"""A whole swarm on this machine: start it, wait for what it says of itself, end it.

Used by the demo, by benchmarks and by end-to-end tests. It knows the programs
only by their command lines and by the files they write.
"""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import tomli_w
import trio

from echo2swarm.system.errors import SwarmError
from echo2swarm.system.jsonl import read_jsonl
from learner.config import LearnerConfig
from learner.demo.process import (
    TAG_VARIABLE,
    GroupExit,
    SwarmProcess,
    start_process,
    stop_processes,
    tagged_pids,
)
from protocols.status import StatusReply

T = TypeVar("T")

_POLL_S: Final = 0.2
_ENV: Final = {
    # Engines and trainer share the cores: spinning threads would cost a factor of ten.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


class LocalSwarm:
    """A learner and nodes as processes; made by :func:`open_swarm`."""

    def __init__(
        self, root: Path, *, env: Mapping[str, str], through: Callable[[str], Sequence[str]]
    ) -> None:
        self.root = root.absolute()
        self.run_dir = root / "run"
        self.config_path = root / "swarm.toml"
        self.log_dir = root / "logs"
        self.processes: list[SwarmProcess] = []
        self.nodes: list[SwarmProcess] = []
        self.tag = secrets.token_hex(8)
        self._env = {**_ENV, **env, TAG_VARIABLE: self.tag}
        self._through = through
        self._learner: SwarmProcess | None = None

    @property
    def learner(self) -> SwarmProcess:
        """The learner that was started last."""
        if self._learner is None:
            raise SwarmError("no learner has been started")
        return self._learner

    @property
    def ticket_path(self) -> Path:
        """Where the learner writes its ticket."""
        return self.run_dir / "ticket.txt"

    async def start_learner(
        self, config: LearnerConfig, *, arguments: Sequence[str] = (), timeout_s: float = 120.0
    ) -> str:
        """Start ``echo2-learner serve`` with ``config`` and return its ticket.

        Raises:
            SwarmError: it ended, or has written no ticket in time.
        """
        await self.launch_learner(config, arguments=arguments)
        return await self.wait_for(
            self._read_ticket, timeout_s=timeout_s, what="the learner's ticket"
        )

    async def launch_learner(
        self, config: LearnerConfig, *, arguments: Sequence[str] = ()
    ) -> SwarmProcess:
        """Start ``echo2-learner serve``, and do not wait for it."""
        write_config(config, self.config_path)
        self.ticket_path.unlink(missing_ok=True)
        self._learner = await self._start(
            "learner.cli",
            ("serve", str(self.config_path), "--run-dir", str(self.run_dir), *arguments),
            name="learner",
        )
        return self._learner

    async def start_node(
        self,
        name: str,
        ticket: str,
        *,
        engine: str = "transformers",
        arguments: Sequence[str] = (),
    ) -> SwarmProcess:
        """Start ``echo2-node join``; under the same name it has the same identity again."""
        process = await self._start(
            "node.cli",
            (
                "join",
                ticket,
                "--state-dir",
                str(self.state_dir(name)),
                "--name",
                name,
                "--engine",
                engine,
                *arguments,
            ),
            name=name,
        )
        self.nodes.append(process)
        return process

    async def start_tool(self, module: str, arguments: Sequence[str], *, name: str) -> SwarmProcess:
        """Start another program, as one of the swarm's."""
        return await self._start(module, arguments, name=name)

    def check(self) -> None:
        """Do nothing while the run can go on.

        Raises:
            SwarmError: the learner has failed, or all nodes have ended before it.
        """
        if self._learner is not None and self._learner.exit_status:
            raise SwarmError(self._learner.obituary())
        is_waited_for = self._learner is not None and self._learner.is_running
        are_gone = bool(self.nodes) and not any(n.is_running for n in self.nodes)
        if is_waited_for and are_gone and needs_nodes(self.status()):
            raise SwarmError(f"all nodes have ended; {self.nodes[-1].obituary()}")

    async def wait_finished(self, *, timeout_s: float) -> None:
        """Return when the learner has ended well, and the nodes have left.

        Raises:
            SwarmError: it failed, all nodes ended before it, or it took over ``timeout_s``.
        """
        deadline = trio.current_time() + timeout_s
        while self.learner.is_running:
            self.check()
            if trio.current_time() >= deadline:
                raise SwarmError(f"the run took over {timeout_s:g} s; logs: {self.log_dir}")
            await trio.sleep(_POLL_S)
        self.check()
        await self.wait_nodes_ended(timeout_s=20)

    async def wait_nodes_ended(self, *, timeout_s: float) -> None:
        """Give the nodes time to leave a run that is over."""
        with trio.move_on_after(timeout_s):
            for process in self.nodes:
                await process.wait()

    def state_dir(self, name: str) -> Path:
        """Return where the node ``name`` keeps its identity and weights."""
        return self.root / "nodes" / name

    def status(self) -> StatusReply | None:
        """Return what the learner last wrote of itself; None if it has not yet."""
        try:
            return msgspec.json.decode(
                (self.run_dir / "status.json").read_bytes(), type=StatusReply
            )
        except FileNotFoundError:
            return None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the learner's events so far, or only those called ``name``."""
        return self._records("events.jsonl", name)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the learner's metrics so far, one record per step."""
        return self._records("metrics.jsonl", None)

    async def wait_status(
        self, condition: Callable[[StatusReply], bool], *, timeout_s: float, what: str
    ) -> StatusReply:
        """Return the first status that fulfils ``condition``.

        Raises:
            SwarmError: the learner ended first, or it took over ``timeout_s``.
        """

        def look() -> StatusReply | None:
            status = self.status()
            return status if status is not None and condition(status) else None

        return await self.wait_for(look, timeout_s=timeout_s, what=what)

    async def wait_event(
        self, event: str, /, *, timeout_s: float, **fields: object
    ) -> dict[str, Any]:
        """Return the first event called ``event`` that has these ``fields``.

        Raises:
            SwarmError: the learner ended first, or it took over ``timeout_s``.
        """

        def look() -> dict[str, Any] | None:
            return next((e for e in self.events(event) if fields.items() <= e.items()), None)

        return await self.wait_for(look, timeout_s=timeout_s, what=f"event {event} {fields or ''}")

    async def wait_for(self, look: Callable[[], T | None], *, timeout_s: float, what: str) -> T:
        """Call ``look`` again and again, and return the first answer that isn't None.

        Raises:
            SwarmError: the learner ended first, or it took over ``timeout_s``.
        """
        deadline = trio.current_time() + timeout_s
        while True:
            # In this order: what it wrote before it ended counts.
            has_ended = self._learner is not None and not self._learner.is_running
            if (found := look()) is not None:
                return found
            if has_ended:
                raise SwarmError(f"{self.learner.obituary()}, while we waited for {what}")
            if trio.current_time() >= deadline:
                raise SwarmError(f"waited {timeout_s:g} s in vain for {what}; logs: {self.log_dir}")
            await trio.sleep(_POLL_S)

    async def stop(self, *, grace_s: float = 8.0) -> GroupExit:
        """End everything; safe to call again."""
        return await stop_processes(self.processes, tag=self.tag, grace_s=grace_s)

    def pids(self) -> list[int]:
        """Return every process of this swarm that is alive, children of children included."""
        return tagged_pids(self.tag)

    async def _start(self, module: str, arguments: Sequence[str], *, name: str) -> SwarmProcess:
        process = await start_process(
            module,
            arguments,
            name=name,
            log_path=self.log_dir / f"{name}.log",
            env=self._env,
            through=self._through(name),
        )
        self.processes.append(process)
        return process

    def _read_ticket(self) -> str | None:
        try:
            text = self.ticket_path.read_text()
        except FileNotFoundError:
            return None
        return text.strip() if text.endswith("\n") else None

    def _records(self, file_name: str, event: str | None) -> list[dict[str, Any]]:
        path = self.run_dir / file_name
        if not path.exists():
            return []
        return [r for r in read_jsonl(path) if event is None or r.get("event") == event]


def needs_nodes(status: StatusReply | None) -> bool:
    """Whether a run can't end well without nodes.

    After the last step it can: they leave at once, while the last checkpoint is still saved.
    """
    return status is None or status.learner_step < status.num_steps


@asynccontextmanager
async def open_swarm(
    root: Path,
    *,
    env: Mapping[str, str] | None = None,
    through: Callable[[str], Sequence[str]] = lambda _: (),
    grace_s: float = 8.0,
) -> AsyncIterator[LocalSwarm]:
    """Make the folder ``root`` for a swarm, and end all its processes with the context.

    Args:
        root: gets ``run/`` (the learner's), ``nodes/NAME/``, ``logs/`` and ``swarm.toml``.
        env: added to the environment of all processes.
        through: given a process's name, the command to start it with, which becomes that process.
        grace_s: how long each may take to end when asked, twice.
    """
    swarm = LocalSwarm(root, env=env or {}, through=through)
    swarm.log_dir.mkdir(parents=True, exist_ok=True)
    try:
        yield swarm
    finally:
        await swarm.stop(grace_s=grace_s)


def write_config(config: LearnerConfig, path: Path) -> None:
    """Write ``config`` as the TOML that ``echo2-learner serve`` reads."""
    tables = _without_none(msgspec.to_builtins(config))
    temporary = path.with_suffix(".tmp")
    temporary.write_text(tomli_w.dumps(tables))
    os.replace(temporary, path)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a key that is not set is left out."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
