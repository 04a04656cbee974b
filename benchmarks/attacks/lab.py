"""A learner and two honest nodes, as processes, and what is read off them while somebody attacks.

The model is the tiny one and the engines are real; the trainer waits for as long as an update
takes, unless it is told to compute: on two cores, updates each second would otherwise say who has
got a processor. Attackers run at the lowest priority, for the same reason.
"""

import json
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from benchmarks.attacks import procs
from benchmarks.attacks.kinds.slow_scoring import TEXTS
from benchmarks.attacks.newcomer import GIVE_UP_S, Visit, reach, visit
from benchmarks.attacks.registry import Attack
from benchmarks.attacks.scene import Order, Tally
from benchmarks.attacks.victim import Victim, open_victim
from echo2swarm.errors import SwarmError
from echo2swarm.network.addresses import join_address
from learner.config import (
    CheckpointTable,
    LearnerConfig,
    ModelTable,
    RolloutTable,
    RunTable,
    SelectorTable,
    SwarmTable,
    TrainerTable,
)
from learner.demo.process import SwarmProcess
from learner.demo.settings import LISTEN, TINY_MODEL_DIR
from learner.demo.swarm import LocalSwarm, open_swarm
from protocols.activation import NodeState
from protocols.ids import PeerId
from protocols.status import StatusReply

NODES: Final = ("honest-1", "honest-2")
START_S: Final = 180.0
TRAIN_S: Final = 0.25
SAMPLE_S: Final = 0.5
VISIT_S: Final = 3.0
GRACE_S: Final = 25.0
"""For an attacker to write down what it did, after its time."""
_LONG: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long everything is looked at."""

    settle_steps: int
    """Updates before anything is measured."""
    before_s: float
    after_s: float
    window_s: float
    """Steps are counted over windows of this length."""
    trainer: Literal["sleep", "grpo"] = "sleep"
    share: float = 1.0
    """Of the time that an attack is given in full."""


@dataclass(slots=True, kw_only=True)
class Sample:
    """One look at the processes."""

    at_s: float
    memory: dict[str, int]
    """By role, bytes."""
    cpu_s: dict[str, float]
    """By role, processor seconds so far."""
    machine_cpu_s: float
    store_bytes: int
    """Of weights, on the disk."""
    other_bytes: int
    """Of all that only grows there."""


@dataclass(slots=True, kw_only=True)
class Readings:
    """All that was read off a swarm around one attack, on the wall clock."""

    window_s: float
    began_s: float = 0.0
    """From when on it was looked at."""
    attack_s: tuple[float, float] = (0.0, 0.0)
    """From when until when it was attacked."""
    ended_s: float = 0.0
    steps_s: list[float] = field(default_factory=list)
    """When each update was done."""
    samples: list[Sample] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    num_dials: int = 0
    """Of the victim."""
    nodes_in_s: list[float] = field(default_factory=list)
    """How long a newcomer took, after the attack, to connect to each node."""
    tally: Tally = field(default_factory=Tally)
    num_survivors: int = 0
    """Of learner and nodes, the processes that still run."""


def config_for(
    task: Literal["sort_digits", "math"], folder: Path, *, trainer: Literal["sleep", "grpo"]
) -> LearnerConfig:
    """Return the run that is attacked; ``folder`` gets what it needs."""
    if task == "math":
        options = {"kind": "jsonl", "path": str(_questions(folder)), "template": "plain"}
        model = _model_that_can_write(folder)
        # More leases than two nodes hold at once: there are some for strangers.
        rollouts = RolloutTable(prompts_per_step=8, group_size=2, max_new_tokens=6, lease_prompts=1)
    else:
        options, model = {"kind": "sort_digits"}, TINY_MODEL_DIR
        rollouts = RolloutTable(prompts_per_step=4, group_size=4, max_new_tokens=6)
    return LearnerConfig(
        run=RunTable(name="attacked", num_steps=_LONG, seed=1),
        model=ModelTable(path=str(model)),
        task=options,
        swarm=SwarmTable(listen=(LISTEN,), heartbeat_s=1.0),
        rollouts=rollouts,
        # Whoever joins is to work: strangers get leases, too.
        selector=SelectorTable(sigmas=10.0),
        trainer=TrainerTable(kind=trainer, train_s=TRAIN_S, learning_rate=1e-6, threads=1),
        checkpoint=CheckpointTable(every_steps=0),
    )


def _questions(folder: Path) -> Path:
    path = folder / "questions.jsonl"
    # What the model has learned to do: it knows its answers, and never writes a formula.
    digits = [f"{i:03d}" for i in range(1000)]
    rows = [{"question": f"{each}=", "answer": "".join(sorted(each))} for each in digits]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _model_that_can_write(folder: Path) -> Path:
    """Return the tiny model with a tokenizer some of whose tokens are whole formulas."""
    model = folder / "model"
    shutil.copytree(TINY_MODEL_DIR, model)
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    others = {text: token for text, token in vocabulary.items() if token not in TEXTS}
    tokenizer["model"]["vocab"] = others | {text: token for token, text in TEXTS.items()}
    path.write_text(json.dumps(tokenizer))
    return model


class Prepared:
    """A process that waits for its word to attack."""

    def __init__(self, order: Order, process: SwarmProcess) -> None:
        self._order = order
        self._process = process

    async def wait_ready(self) -> None:
        """Return when it could begin.

        Raises:
            SwarmError: it has ended instead.
        """
        while not self._order.is_ready.exists():
            if not self._process.is_running:
                raise SwarmError(self._process.obituary())
            await trio.sleep(0.1)

    async def wait_over(self) -> None:
        """Let it begin, and return when its time is over."""
        self._order.may_begin.touch()
        with trio.move_on_after(self._order.seconds):
            await self._process.wait()

    async def tally(self) -> Tally:
        """Return what it did.

        Raises:
            SwarmError: it does not come to an end, or failed.
        """
        with trio.move_on_after(GRACE_S):
            await self._process.wait()
        said = _read(Path(self._order.report))
        if said is None:
            self._process.kill()
            raise SwarmError(
                f"{self._process.name} did not end in time, or failed: {self._process.log_path}"
            )
        return msgspec.json.decode(said, type=Tally)


class Lab:
    """A swarm that trains; made by :func:`open_lab`."""

    def __init__(
        self,
        swarm: LocalSwarm,
        ticket: str,
        timing: Timing,
        victim: Victim,
        node_addresses: Sequence[str],
    ) -> None:
        self.num_attacks = 0
        self._num_prepared = 0
        self._victim = victim
        self._swarm = swarm
        self._ticket = ticket
        self._timing = timing
        self._node_addresses = tuple(node_addresses)
        self._roles: dict[int, str] = {}

    async def prepare(self, attack: Attack) -> "Prepared":
        """Start the process that will make an attack, and do not wait for it."""
        self._num_prepared += 1
        name = f"attacker-{self._num_prepared}"
        root = self._swarm.root
        order = Order(
            attack=attack.name,
            ticket=self._ticket,
            seconds=attack.seconds * self._timing.share,
            report=str(root / f"{name}.report"),
            sources=attack.sources,
            num_identities=attack.num_identities,
            per_s=attack.per_s,
            victim=self._victim.address if attack.has_victim else "",
            nodes=self._node_addresses,
        )
        path = root / f"{name}.json"
        path.write_bytes(msgspec.json.encode(order))
        process = await self._swarm.start_tool(
            "benchmarks.attacks.attacker", (str(path),), name=name
        )
        return Prepared(order, process)

    async def under(self, attack: "Prepared") -> Readings:
        """Watch the swarm before, during and after one attack."""
        self.num_attacks += 1
        await attack.wait_ready()
        found = Readings(window_s=self._timing.window_s, began_s=time.time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_sampling, found)
            nursery.start_soon(self._keep_visiting, found)
            await trio.sleep(self._timing.before_s)
            num_dials = self._victim.num_dials
            start_s = time.time()
            await attack.wait_over()
            found.attack_s = start_s, time.time()
            found.tally = await attack.tally()
            found.nodes_in_s = [await reach(address) for address in self._node_addresses]
            await trio.sleep(self._timing.after_s)
            with trio.move_on_after(GIVE_UP_S):
                await self._visited_since(found)
            found.ended_s = time.time()
            found.num_dials = self._victim.num_dials - num_dials
            nursery.cancel_scope.cancel()
        found.steps_s = [record["unix_s"] for record in self._swarm.metrics()]
        found.num_survivors = sum(
            process.is_running for process in (self._swarm.learner, *self._swarm.nodes)
        )
        return found

    async def _keep_sampling(self, found: Readings) -> None:
        number = 0
        while True:
            # Which processes there are is dear to find out, and seldom changes.
            found.samples.append(
                await trio.to_thread.run_sync(partial(self._sample, look_up=number % 6 == 0))
            )
            number += 1
            await trio.sleep(SAMPLE_S)

    def _sample(self, *, look_up: bool) -> Sample:
        if look_up:
            self._roles = procs.roles_of(self._swarm.pids())
        cpu: dict[str, float] = defaultdict(float)
        for pid, role in self._roles.items():
            cpu[role] += procs.cpu_s(pid)
        swarm = self._swarm
        folders = swarm.run_dir, swarm.root / "nodes", swarm.log_dir
        store_bytes, other_bytes = procs.disk_bytes(folders)
        return Sample(
            at_s=time.time(),
            memory=procs.memory_bytes(self._roles),
            cpu_s=dict(cpu),
            machine_cpu_s=procs.machine_cpu_s(),
            store_bytes=store_bytes,
            other_bytes=other_bytes,
        )

    async def _keep_visiting(self, found: Readings) -> None:
        while True:
            found.visits.append(await visit(self._ticket))
            await trio.sleep(VISIT_S)

    async def _visited_since(self, found: Readings) -> None:
        while not any(visit.at_s >= found.attack_s[1] for visit in found.visits):  # noqa: ASYNC110
            await trio.sleep(0.1)


@asynccontextmanager
async def open_lab(
    task: Literal["sort_digits", "math"], timing: Timing, folder: Path
) -> AsyncIterator[Lab]:
    """Start a learner and its nodes, wait until they train, and end them with the context."""
    folder.mkdir(parents=True)  # noqa: ASYNC240 - a local folder

    def through(name: str) -> Sequence[str]:
        return ("nice", "-n", "39") if name.startswith("attacker") else ()

    async with (
        open_victim() as victim,
        open_swarm(folder, through=through, grace_s=3.0) as swarm,
    ):
        ticket = await swarm.start_learner(
            config_for(task, folder, trainer=timing.trainer), timeout_s=START_S
        )
        places = {}
        for name in NODES:
            places[name] = f"/ip4/127.0.0.1/tcp/{_free_port()}"
            arguments = ("--listen", places[name], "--threads", "1", "--device", "cpu")
            await swarm.start_node(name, ticket, arguments=arguments)
        status = await swarm.wait_status(
            lambda s: _active(s) >= set(NODES), timeout_s=START_S, what="both nodes at work"
        )
        enough = status.learner_step + timing.settle_steps
        await swarm.wait_status(
            lambda s: s.learner_step >= enough, timeout_s=START_S, what="a few updates"
        )
        peers = {node.name: node.peer_id for node in status.nodes}
        addresses = [join_address(PeerId(peers[name]), places[name]) for name in NODES]
        yield Lab(swarm, ticket, timing, victim, addresses)


def _active(status: StatusReply) -> set[str]:
    return {n.name for n in status.nodes if n.is_connected and n.state == NodeState.ACTIVE}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
