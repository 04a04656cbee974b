"""Discovery on the in-memory network: a swarm's minutes in a virtual clock's milliseconds."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import structlog
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.typing import EventDict
from trio.testing import MockClock

from echo2swarm.network.base import Network
from echo2swarm.network.discovery import Discovery
from protocols import advert
from protocols.advert import NodeAdvert
from protocols.ids import PeerId, RunId, peer_id_of
from tests.fakes.network.memory import MemoryHub
from tests.fakes.network.memory_node import MemoryNetwork

RUN = RunId("run-1")
LEARNER = 1


def key_of(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def peer_of(number: int) -> PeerId:
    return peer_id_of(key_of(number).public_key())


def discovery_of(
    network: Network, number: int, *boot: str, book_path: Path | None = None
) -> Discovery:
    def sealed_advert() -> bytes:
        return advert.sign_advert(
            NodeAdvert(
                run_id=RUN,
                peer_id=network.peer,
                role="learner" if number == LEARNER else "node",
                seq=int(trio.current_time() * 1000),
                addresses=network.addresses(),
                name="n",
                engine="e",
                device="d",
                usd_per_hour=0.0,
                software="s",
            ),
            key_of(number),
        )

    return Discovery(
        network,
        run=RUN,
        learner=peer_of(LEARNER),
        boot=boot,
        sealed_advert=sealed_advert,
        rng=random.Random(number),
        unix_now_s=lambda: 1e9 + trio.current_time(),
        book_path=book_path,
    )


@asynccontextmanager
async def participant(
    hub: MemoryHub,
    number: int,
    *boot: str,
    address: str | None = None,
    book_path: Path | None = None,
) -> AsyncIterator[MemoryNetwork]:
    """A peer with its discovery running."""
    async with hub.network(key_of(number), address=address) as network, trio.open_nursery() as n:
        n.start_soon(discovery_of(network, number, *boot, book_path=book_path).run)
        yield network
        n.cancel_scope.cancel()


@contextmanager
def warnings_logged() -> Iterator[list[EventDict]]:
    found: list[EventDict] = []
    with structlog.testing.capture_logs() as events:
        yield found
    found.extend(event for event in events if event["log_level"] == "warning")


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(seed=7)


async def within(limit_s: float, discovery: Discovery) -> PeerId:
    with trio.fail_after(limit_s):
        return (await discovery.find_learner()).peer


async def test_a_node_finds_the_learner_at_the_address_in_its_ticket(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with participant(hub, LEARNER) as learner, hub.network(key_of(2)) as node:
        found = await within(5, discovery_of(node, 2, *learner.addresses()))

        assert found == learner.peer
        assert learner.peer in node.connected_peers()


async def test_a_ticket_with_only_another_nodes_address_leads_to_the_learner_and_others(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with (
        participant(hub, LEARNER) as learner,
        participant(hub, 2, *learner.addresses()) as second,
    ):
        await trio.sleep(60)
        async with participant(hub, 3, *second.addresses()) as third:
            await trio.sleep(60)
            assert third.connected_peers() == {learner.peer, second.peer}

            async with participant(hub, 4, *third.addresses()) as fourth:
                await trio.sleep(120)
                assert fourth.connected_peers() == {learner.peer, second.peer, third.peer}


async def test_a_learner_that_moved_is_found_through_a_node(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    old = "/ip4/10.1.1.1/tcp/1"
    async with participant(hub, LEARNER, address=old) as learner:
        ticket = learner.addresses()
        async with participant(hub, 2, *ticket) as node:
            await trio.sleep(30)
            hub.kill(learner.peer)
            await trio.sleep(30)
            async with participant(hub, LEARNER, *node.addresses(), address="/ip4/10.2.2.2/tcp/2"):
                await trio.sleep(60)
                assert learner.peer in node.connected_peers()
                async with hub.network(key_of(3)) as late:
                    found = await within(60, discovery_of(late, 3, *ticket, *node.addresses()))
                    assert found == learner.peer


async def test_a_boot_peer_that_is_down_is_named_once_and_tried_ever_less_often(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    dead = f"/ip4/10.9.9.9/tcp/4001/p2p/{peer_of(9)}"
    async with hub.network(key_of(2)) as node:
        with structlog.testing.capture_logs() as events, trio.move_on_after(600):
            await discovery_of(node, 2, dead).find_learner()

    complaints = [event for event in events if event["log_level"] == "warning"]
    assert [event["event"] for event in complaints] == ["peer.unreachable"]
    assert peer_of(9) in complaints[0]["error"]
    assert "/ip4/10.9.9.9/tcp/4001: connection refused" in complaints[0]["error"]
    waits_s = [e["retry_in_s"] for e in events if e["event"] == "learner.not_found_yet"]
    assert waits_s[0] <= 1
    assert 30 <= waits_s[-1] <= 60
    assert 10 <= len(waits_s) <= 25


async def test_why_the_learner_is_not_reached_can_be_asked_until_it_is(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    where = "/ip4/10.1.1.1/tcp/1"
    async with hub.network(key_of(2)) as node:
        discovery = discovery_of(node, 2, f"{where}/p2p/{peer_of(LEARNER)}")
        with trio.move_on_after(100):
            await discovery.find_learner()
        assert "connection refused" in discovery.trouble

        async with hub.network(key_of(LEARNER), address=where):
            await discovery.find_learner()
        assert discovery.trouble == ""


async def test_a_learner_that_comes_late_is_found_when_it_comes(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    where = "/ip4/10.1.1.1/tcp/1"
    ticket = f"{where}/p2p/{peer_of(LEARNER)}"
    async with participant(hub, 2, ticket) as node:
        await trio.sleep(100)
        assert node.connected_peers() == frozenset()

        async with hub.network(key_of(LEARNER), address=where) as learner:
            await trio.sleep(90)
            assert node.connected_peers() == {learner.peer}


async def test_a_lost_learner_is_looked_for_and_found_again(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    where = "/ip4/10.1.1.1/tcp/1"
    async with participant(hub, 2, f"{where}/p2p/{peer_of(LEARNER)}") as node:
        for _ in range(2):
            async with hub.network(key_of(LEARNER), address=where) as learner:
                await trio.sleep(90)
                assert node.connected_peers() == {learner.peer}
            await trio.sleep(5)
            assert node.connected_peers() == frozenset()


async def test_peers_of_the_last_start_are_tried_at_the_next(
    hub: MemoryHub, tmp_path: Path, autojump_clock: MockClock
) -> None:
    book_path = tmp_path / "peers.json"
    async with participant(hub, LEARNER) as learner:
        async with participant(hub, 2, *learner.addresses(), book_path=book_path):
            await trio.sleep(60)
        assert book_path.exists()

        async with participant(hub, 2, book_path=book_path) as node:
            await trio.sleep(5)
            assert node.connected_peers() == {learner.peer}


async def test_a_learner_that_restarts_elsewhere_calls_on_the_nodes_it_knew(
    hub: MemoryHub, tmp_path: Path, autojump_clock: MockClock
) -> None:
    book_path = tmp_path / "peers.json"
    async with participant(hub, LEARNER, book_path=book_path) as learner:
        ticket = learner.addresses()
        async with participant(hub, 2, *ticket) as node:
            await trio.sleep(60)
            hub.kill(learner.peer)
            async with participant(hub, LEARNER, book_path=book_path) as restarted:
                await trio.sleep(5)
                assert restarted.connected_peers() == {node.peer}


async def test_a_damaged_address_book_is_ignored_with_one_line(
    hub: MemoryHub, tmp_path: Path, autojump_clock: MockClock
) -> None:
    book_path = tmp_path / "peers.json"
    book_path.write_text("{")
    with warnings_logged() as warnings:
        async with participant(hub, LEARNER) as learner, hub.network(key_of(2)) as node:
            discovery = discovery_of(node, 2, *learner.addresses(), book_path=book_path)
            assert await within(5, discovery) == learner.peer

    assert [event["event"] for event in warnings] == ["address_book.ignored"]


async def test_malformed_addresses_in_a_ticket_do_not_hide_the_good_one(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with participant(hub, LEARNER) as learner, hub.network(key_of(2)) as node:
        boot = ("nonsense", "/ip4/10.0.0.1/tcp/1", "/p2p/x", *learner.addresses())

        assert await within(5, discovery_of(node, 2, *boot)) == learner.peer


async def test_a_partition_heals_by_itself(hub: MemoryHub, autojump_clock: MockClock) -> None:
    async with (
        participant(hub, LEARNER) as learner,
        participant(hub, 2, *learner.addresses()) as node,
    ):
        await trio.sleep(30)
        hub.partition({learner.peer}, {node.peer})
        await trio.sleep(60)
        assert node.connected_peers() == frozenset()

        hub.heal()
        await trio.sleep(120)
        assert node.connected_peers() == {learner.peer}


async def test_a_large_swarm_keeps_its_connections_few_and_its_members_findable(
    hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with participant(hub, LEARNER) as learner, trio.open_nursery() as nursery:
        networks: list[MemoryNetwork] = []

        async def live(number: int) -> None:
            async with participant(hub, number, *learner.addresses()) as network:
                networks.append(network)
                await trio.sleep_forever()

        for number in range(2, 22):
            nursery.start_soon(live, number)
        await trio.sleep(300)

        for network in networks:
            assert learner.peer in network.connected_peers()
            # It dials four; others may dial it.
            assert len(network.connected_peers()) < 20
            record = await learner.get_record(advert.dht_key_of(RUN, network.peer))
            assert record is not None
            assert (
                advert.verify_advert(record, run=RUN, peer=network.peer).addresses
                == network.addresses()
            )
        nursery.cancel_scope.cancel()
