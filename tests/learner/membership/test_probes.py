"""A node asks to be measured, and the learner measures it: both real, on the in-memory network."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.network.base import Network, PeerInfo, ServeLimits, Stream
from echo2swarm.system.errors import NetworkError
from echo2swarm.weights.overlay.link_probe import MayISend, hear, say
from echo2swarm.weights.transfer.rate_limit import UploadBudget
from learner.membership.probes import AGAIN_S, BUSY_S, PROBE_S, ProbeService
from node.membership.link_probe import MAX_FAILURES, RETRY_S, START_S, Prober, Quiet
from protocols import probe
from protocols.ids import PeerId
from protocols.probe import ProbeBlock, ProbeGo, ProbeRefused, ProbeRequest, ProbeResult
from protocols.reasons import Reason
from tests.fakes.network.memory import MemoryHub
from tests.node.fakes import make_key

RUN = "test-run"


@dataclass
class World:
    network: Network
    service: ProbeService
    hub: MemoryHub
    measured: list[tuple[PeerId, float, float]] = field(default_factory=list)
    is_sending: bool = False
    strangers: set[PeerId] = field(default_factory=set)


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    hub = MemoryHub(0, latency_s=(0.04, 0.04))
    async with hub.network(make_key(1)) as network:
        service = ProbeService(
            run_id=RUN,
            is_member=lambda peer: peer not in world.strangers,
            is_sending=lambda: world.is_sending,
            on_measured=lambda *measured: world.measured.append(measured),
        )
        world = World(network, service, hub)
        service.serve(network)
        yield world


@asynccontextmanager
async def open_node(world: World, number: int = 2) -> AsyncIterator[Network]:
    async with world.hub.network(make_key(number)) as network:
        addresses = tuple(a.split("/p2p/")[0] for a in world.network.addresses())
        await network.connect(PeerInfo(peer=world.network.peer, addresses=addresses))
        yield network


class QuietFrom:
    """Quiet from some moment on."""

    def __init__(self, *, is_now: bool) -> None:
        self._begun = trio.Event()
        if is_now:
            self._begun.set()

    def begin(self) -> None:
        self._begun.set()

    @property
    def is_now(self) -> bool:
        return self._begun.is_set()

    async def wait(self) -> None:
        await self._begun.wait()


def prober(
    world: World,
    network: Network,
    *,
    quiet: Quiet | None = None,
    may_i_send: MayISend | None = None,
) -> Prober:
    return Prober(
        network,
        learner=world.network.peer,
        run_id=RUN,
        quiet=quiet or QuietFrom(is_now=True),
        may_i_send=may_i_send,
    )


@asynccontextmanager
async def ask(world: World, network: Network) -> AsyncIterator[Stream]:
    async with network.open_stream(
        world.network.peer, probe.PROTOCOL_ID, max_frame_bytes=probe.MAX_FRAME_BYTES
    ) as stream:
        await say(stream, ProbeRequest(RUN))
        yield stream


async def test_a_node_is_measured_once_in_both_directions(autojump_clock: MockClock) -> None:
    async with open_world() as world, open_node(world) as network:
        with trio.fail_after(60):
            await prober(world, network).run()

    ((peer, upload, download),) = world.measured
    assert peer == network.peer
    assert upload > 1e6
    assert download > 1e6


async def test_it_waits_until_nothing_is_transferred(autojump_clock: MockClock) -> None:
    async with open_world() as world, open_node(world) as network:
        quiet = QuietFrom(is_now=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prober(world, network, quiet=quiet).run)
            await trio.sleep(1000)
            assert world.measured == []
            quiet.begin()

    assert len(world.measured) == 1


async def test_a_contributors_cap_holds_for_the_probe_too(autojump_clock: MockClock) -> None:
    async with open_world() as world, open_node(world) as network:
        budget = UploadBudget(500_000.0)
        with trio.fail_after(60):
            await prober(world, network, may_i_send=budget.wait).run()

    ((_, upload, download),) = world.measured
    assert upload == pytest.approx(500_000, rel=0.2)
    assert download > 1e6


async def test_one_node_at_a_time_and_the_others_come_later(autojump_clock: MockClock) -> None:
    async with (
        open_world() as world,
        open_node(world, 2) as one,
        open_node(world, 3) as two,
        ask(world, one) as first,
    ):
        assert await hear(first) == ProbeGo()
        async with ask(world, two) as second:
            answer = await hear(second)
        assert isinstance(answer, ProbeRefused)
        assert (answer.reason, answer.retry_after_s) == (Reason.RATE_LIMITED, BUSY_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prober(world, two).run)
            await trio.sleep(PROBE_S)  # the first one says nothing more, and is cut off
            with trio.fail_after(60):
                while not world.measured:  # noqa: ASYNC110
                    await trio.sleep(1)

    assert [peer for peer, *_ in world.measured] == [two.peer]


async def test_one_node_is_measured_again_after_ten_minutes_only(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world, open_node(world) as network:
        await prober(world, network).run()
        began_s = trio.current_time()
        await prober(world, network).run()
        took_s = trio.current_time() - began_s

    assert len(world.measured) == 2
    assert AGAIN_S - 60 < took_s < AGAIN_S + 60


async def test_the_learner_measures_nobody_while_it_sends_weights(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world, open_node(world) as network:
        world.is_sending = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prober(world, network).run)
            await trio.sleep(100)
            assert world.measured == []
            world.is_sending = False

    assert len(world.measured) == 1


async def test_strangers_are_not_measured(autojump_clock: MockClock) -> None:
    async with open_world() as world, open_node(world) as network:
        world.strangers.add(network.peer)
        async with ask(world, network) as stream:
            answer = await hear(stream)

    assert isinstance(answer, ProbeRefused)
    assert answer.reason is Reason.NOT_A_MEMBER


async def test_a_node_that_cheats_in_the_probe_is_cut_off_and_not_measured(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world, open_node(world) as network, open_node(world, 3) as next_one:
        async with ask(world, network) as stream:
            await hear(stream)
            await say(stream, ProbeResult(1e9, 1e9))
            with pytest.raises(NetworkError):
                await stream.receive()
        await prober(world, next_one).run()

    assert [peer for peer, *_ in world.measured] == [next_one.peer]


async def test_blocks_without_end_are_cut_off(autojump_clock: MockClock) -> None:
    block = ProbeBlock(random.Random(0).randbytes(probe.BLOCK_BYTES), is_last=False)

    async def send_for_ever(stream: Stream) -> None:
        while True:
            await say(stream, block)
            await stream.receive()

    async with (
        open_world() as world,
        open_node(world) as network,
        ask(world, network) as stream,
    ):
        await hear(stream)
        with pytest.raises(NetworkError):
            await send_for_ever(stream)

    assert world.measured == []


async def test_a_node_gives_up_after_some_failures_and_lives_on(
    autojump_clock: MockClock,
) -> None:
    async with open_world() as world, open_node(world) as network:
        asked_at_s = []

        async def garble(stream: Stream) -> None:
            asked_at_s.append(trio.current_time())
            await stream.receive()
            await stream.send(b"garbage")

        world.network.serve(probe.PROTOCOL_ID, garble, ServeLimits(max_frame_bytes=1 << 17))
        began_s = trio.current_time()
        with trio.fail_after(1000):
            await prober(world, network).run()

    assert len(asked_at_s) == MAX_FAILURES
    assert asked_at_s[0] - began_s >= START_S
    assert asked_at_s[1] - asked_at_s[0] >= RETRY_S
