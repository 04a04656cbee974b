"""The whole node around a real engine process and real files, on the in-memory network."""

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from echo2swarm.network.rpc import serve_calls
from echo2swarm.system.errors import DoesNotFitError, UsageError
from echo2swarm.system.identity import Identity
from echo2swarm.text.cli_errors import explain_error
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import VersionLibrary, open_library
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from node.app import _watch_signals, run_node
from node.config import NodeConfig
from node.control.client import open_control
from node.control.messages import DrainCommand, NodePhase, PauseCommand, ResumeCommand
from node.control.paths import socket_path
from node.engine.base import EngineBrokenError
from node.engine.options import SleepOptions
from node.engine.process import engine_spec
from node.owner.settings import OwnerSettings
from node.preflight import check_expiry
from protocols import status
from protocols.codec import encode
from protocols.heartbeat import Directive, NodeState
from protocols.ids import PeerId, PolicyVersion, RunId
from protocols.status import StatusReply
from protocols.ticket import Ticket
from tests.fakes.network.memory import MemoryHub
from tests.fakes.network.memory_node import MemoryNetwork
from tests.node.bench import LEARNER, LEARNER_AT
from tests.node.fakes import RUN, SAMPLING, FakeLearner, make_key
from tests.processes import children_of, command_line
from tests.protocols.samples import MESSAGES

LEARNER_KEY, NODE_KEY = make_key(1), make_key(2)
TEN_YEARS_S = 10 * 365 * 24 * 3600


@dataclass
class Origin:
    """A learner that publishes real versions and leases as it is told."""

    learner: FakeLearner
    library: VersionLibrary
    announcer: ManifestAnnouncer
    folder: Path

    async def publish(self, version: int) -> None:
        snapshot = self.folder / f"snapshot-{version}"
        snapshot.mkdir()
        (snapshot / "model.safetensors").write_bytes(bytes([version]) * 1000)
        (snapshot / "config.json").write_text('{"vocab_size": 16}')
        held = await publish_version(
            self.library,
            version=PolicyVersion(version),
            snapshot=snapshot,
            assets=snapshot,
            rules=PolicyRules(sampling=SAMPLING, max_staleness=2, publish_every=1),
            key=LEARNER_KEY,
        )
        self.learner.version = version
        await self.announcer.announce(held.sealed)


@asynccontextmanager
async def open_origin(hub: MemoryHub, folder: Path) -> AsyncIterator[Origin]:
    await trio.Path(folder).mkdir()
    learner = FakeLearner(next_heartbeat_s=0.2)
    async with (
        hub.network(LEARNER_KEY, address=LEARNER_AT) as network,
        open_library(
            folder / "weights", run=RunId(RUN), learner_key=LEARNER_KEY.public_key()
        ) as library,
    ):
        ChunkServer(network, library.store, Traffic())
        learner.serve(network)
        yield Origin(learner, library, ManifestAnnouncer(network, RunId(RUN)), folder)


def config_of(folder: Path) -> NodeConfig:
    options = SleepOptions(rollouts_per_s=200, num_tokens=3, max_batch=16)
    return NodeConfig(
        ticket=Ticket(
            run_id=RUN,
            learner_key=LEARNER_KEY.public_key().public_bytes_raw(),
            addresses=(f"{LEARNER_AT}/p2p/{LEARNER}",),
            expires_unix_s=int(time.time()) + TEN_YEARS_S,
        ),
        state_dir=folder / "node",
        name="ada",
        listen=(),
        advertise=(),
        engines=(engine_spec("sleep", options),),
        max_batch=options.max_batch,
        usd_per_hour=0.5,
    )


async def test_a_node_joins_syncs_works_and_leaves_when_the_run_is_over(tmp_path: Path) -> None:
    hub, ended = MemoryHub(0), []

    async with open_origin(hub, tmp_path / "origin") as origin:
        learner = origin.learner

        async def run_it() -> None:
            async with hub.network(NODE_KEY) as network:
                identity = Identity.of(NODE_KEY)
                ended.append(
                    await run_node(config_of(tmp_path), identity, network, stop=trio.Event())
                )

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_it)
                await origin.publish(0)
                learner.give(3)
                await learner.until(lambda: len(learner.rollouts) == 3 * 8)
                await origin.publish(1)
                await learner.until(lambda: learner.beats[-1].applied_version == 1)
                learner.directive = Directive.FINISHED

    assert ended == [True]
    assert learner.states[-1] is NodeState.LEFT
    assert {r.oldest_version for r in learner.rollouts} == {0}
    # The weights of the first version and the config, then what has changed.
    assert learner.beats[-1].payload_bytes_received > 1000
    told = [link for beat in learner.beats for link in beat.links if link.peer_id == LEARNER]
    assert max(link.bytes_received for link in told) > 1000
    assert learner.beats[-1].receiving_s > 0


async def test_a_node_whose_engine_is_given_up_says_why_and_takes_its_leave(tmp_path: Path) -> None:
    hub = MemoryHub(0)
    config = config_of(tmp_path)
    (engine,) = config.engines
    told = tmp_path / "break"
    broken = replace(
        engine, module="tests.node.engine.broken_worker", env={"BREAK_WHEN": str(told)}
    )

    async with open_origin(hub, tmp_path / "origin") as origin, trio.open_nursery() as nursery:
        await origin.publish(0)

        async def break_when_it_has_joined() -> None:
            await origin.learner.until(lambda: len(origin.learner.beats) > 2)
            await trio.Path(told).touch()

        nursery.start_soon(break_when_it_has_joined)
        with trio.fail_after(120):
            async with hub.network(NODE_KEY) as network:
                with pytest.raises(BaseExceptionGroup) as caught:
                    await run_node(
                        replace(config, engines=(broken,)),
                        Identity.of(NODE_KEY),
                        network,
                        stop=trio.Event(),
                    )

    assert caught.group_contains(EngineBrokenError, match="no such device; choose another")
    assert origin.learner.states[-1] is NodeState.LEFT


async def test_a_node_whose_engine_is_killed_stays_and_works_on(tmp_path: Path) -> None:
    hub, stop = MemoryHub(0), trio.Event()

    async with open_origin(hub, tmp_path / "origin") as origin:
        learner = origin.learner

        async def run_it() -> None:
            async with hub.network(NODE_KEY) as network:
                identity = Identity.of(NODE_KEY)
                assert not await run_node(config_of(tmp_path), identity, network, stop=stop)

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_it)
                await origin.publish(0)
                learner.give(1)
                await learner.until(lambda: len(learner.rollouts) == 8)
                (engine,) = _engines()
                os.kill(engine, signal.SIGKILL)
                await learner.until(
                    lambda: (
                        learner.beats[-1].num_engine_restarts == 1
                        and learner.beats[-1].state is NodeState.ACTIVE
                    )
                )
                learner.give(1)
                await learner.until(lambda: len(learner.rollouts) == 16)
                stop.set()

    assert {beat.session_id for beat in learner.beats} == {learner.beats[0].session_id}
    assert learner.beats[-1].state is NodeState.LEFT
    assert _engines() == []


def _engines() -> list[int]:
    """Return the engine processes that are our children."""
    return [pid for pid in children_of(os.getpid()) if "node.engine" in command_line(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_asks_to_stop_and_the_second_interrupts(number: int) -> None:
    stop = trio.Event()

    with pytest.RaisesGroup(KeyboardInterrupt):
        async with trio.open_nursery() as nursery:
            await nursery.start(_watch_signals, stop)
            os.kill(os.getpid(), number)
            with trio.fail_after(60):
                await stop.wait()
            os.kill(os.getpid(), number)
            await trio.sleep(10)


async def test_its_owner_can_pause_it_and_let_it_go_on_over_the_socket(tmp_path: Path) -> None:
    hub, stop = MemoryHub(0), trio.Event()

    async with open_origin(hub, tmp_path / "origin") as origin:
        learner, config = origin.learner, config_of(tmp_path)

        async def run_it() -> None:
            async with hub.network(NODE_KEY) as network:
                await run_node(config, Identity.of(NODE_KEY), network, stop=stop)

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_it)
                await origin.publish(0)
                learner.give(1)
                await learner.until(lambda: len(learner.rollouts) == 8)
                async with open_control(config.state_dir) as client:
                    await client.ask(PauseCommand(why="gaming"))
                    await learner.until(lambda: learner.beats[-1].state is NodeState.PAUSED)
                    await origin.publish(1)
                    await trio.sleep(1)
                    seen = await client.status()
                    assert (seen.phase, seen.state) == (NodePhase.PAUSED, NodeState.PAUSED)
                    assert "gaming" in seen.doing
                    assert seen.versions.held == 0  # It does not fetch, either.
                    assert seen.contribution.num_accepted == 8
                    assert seen.contribution.num_tokens == 3 * 8
                    await client.ask(ResumeCommand())
                    await learner.until(lambda: learner.beats[-1].state is NodeState.ACTIVE)
                    learner.give(1)
                    await learner.until(lambda: len(learner.rollouts) == 16)
                    await learner.until(lambda: learner.beats[-1].applied_version == 1)
                    await client.ask(DrainCommand())
    assert learner.states[-1] is NodeState.LEFT
    assert not socket_path(config.state_dir).exists()


async def test_a_model_over_the_disk_quota_ends_the_node_before_it_is_fetched(
    tmp_path: Path,
) -> None:
    hub = MemoryHub(0)
    config = replace(config_of(tmp_path), owner=OwnerSettings(disk_bytes=1500))

    async with open_origin(hub, tmp_path / "origin") as origin:
        await origin.publish(0)
        with trio.fail_after(120):
            async with hub.network(NODE_KEY) as network:
                with pytest.RaisesGroup(
                    DoesNotFitError, flatten_subgroups=True, allow_unwrapped=True
                ) as caught:
                    await run_node(config, Identity.of(NODE_KEY), network, stop=trio.Event())

    ending = explain_error(caught.value)
    assert ending.status == 1
    assert "--disk-gb" in ending.line
    assert origin.learner.beats[-1].payload_bytes_received < 1000


async def test_whether_a_ticket_has_expired_is_the_learners_to_say() -> None:
    hub = MemoryHub(0)
    ticket = replace_expiry(1_000_000)

    async with (
        hub.network(LEARNER_KEY, address=LEARNER_AT) as theirs,
        hub.network(NODE_KEY) as network,
    ):
        for learner_unix_s, has_expired in [(999_000.0, False), (1_000_001.0, True)]:
            serve_status(theirs, learner_unix_s)
            if not has_expired:
                await check_expiry(network, ticket, unix_now_s=1_003_600.0)
                continue
            with pytest.raises(UsageError, match=r"expired 1\.0 h ago, as the learner's clock"):
                await check_expiry(network, ticket, unix_now_s=1_003_600.0)


async def test_an_expired_ticket_whose_learner_is_gone_is_one_line(
    autojump_clock: MockClock,
) -> None:
    hub = MemoryHub(0)

    async with hub.network(NODE_KEY) as network:
        with (
            trio.fail_after(30),
            pytest.raises(UsageError, match="clock is ahead, and the learner"),
        ):
            await check_expiry(network, replace_expiry(1_000_000), unix_now_s=1_003_600.0)


def replace_expiry(expires_unix_s: int) -> Ticket:
    return Ticket(
        run_id=RUN,
        learner_key=LEARNER_KEY.public_key().public_bytes_raw(),
        addresses=(f"{LEARNER_AT}/p2p/{LEARNER}",),
        expires_unix_s=expires_unix_s,
    )


def serve_status(network: MemoryNetwork, at_unix_s: float) -> None:
    found = next(m for m in MESSAGES["status"] if isinstance(m, StatusReply))
    reply = msgspec.structs.replace(found, run_id=RUN, at_unix_s=at_unix_s)

    async def answer(_: PeerId, __: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return encode(reply, max_bytes=status.MAX_REPLY_BYTES)

    serve_calls(
        network,
        status.PROTOCOL_ID,
        answer,
        max_request_bytes=status.MAX_REQUEST_BYTES,
        max_reply_bytes=status.MAX_REPLY_BYTES,
        timeout_s=10,
    )
