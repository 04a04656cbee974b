"""Fetching and serving among peers of every character, over the in-memory network."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from echo2swarm.network.base import Network, ServeLimits, Stream
from echo2swarm.system.errors import NetworkError, StoreError
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import PayloadStore, open_store
from echo2swarm.weights.transfer.banned import SHUN_S, BanList
from echo2swarm.weights.transfer.fetch import FetchProgress, fetch_payload
from echo2swarm.weights.transfer.rate_limit import DownloadBudget
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.stream_pool import StreamPool
from echo2swarm.weights.transfer.traffic import Traffic
from protocols import chunks
from protocols.chunks import (
    Chunk,
    ChunkRefused,
    DownloadDone,
    Hashes,
    Have,
    Held,
    Holding,
    OpenPayload,
    Reply,
    Request,
    WantChunk,
    WantHashes,
    bitmap_of,
)
from protocols.codec import decode, encode
from protocols.ids import PeerId
from protocols.manifest import MIN_CHUNK_BYTES
from protocols.reasons import Reason
from tests.echo2swarm.weights.made import Made, made
from tests.echo2swarm.weights.swarm import address_of, node_key
from tests.fakes.network.memory import MemoryHub

NUM_CHUNKS = 30
Serve = Callable[[Stream, Made], Awaitable[None]]


class Peer:
    """A store on the network, served to others."""

    def __init__(self, network: Network, store: PayloadStore) -> None:
        self.network = network
        self.store = store
        self.traffic = Traffic()
        self.faults: list[tuple[PeerId, Reason]] = []
        self.progress: list[FetchProgress] = []
        self.shunned = BanList()
        self.lines = StreamPool(network)
        self.is_open = True
        self.budget: DownloadBudget | None = None
        self.server = ChunkServer(
            network, store, self.traffic, shunned=self.shunned, is_open=lambda: self.is_open
        )

    async def put(self, payload: Made, *, num_chunks: int | None = None) -> Payload:
        stored = await self.store.begin(payload.ref)
        await self.store.put_hashes(stored, payload.hashes)
        for index, chunk in list(enumerate(payload.chunks))[:num_chunks]:
            await self.store.put_chunk(stored, index, chunk)
        if num_chunks is None:
            await self.store.finish(stored)
        return stored

    async def fetch(self, payload: Made, *, source: PeerId | None = None) -> Payload:
        return await fetch_payload(
            self.lines,
            self.store,
            payload.ref,
            holders=self.network.connected_peers,
            source=source,
            rng=random.Random(0),
            traffic=self.traffic,
            on_progress=self.progress.append,
            on_fault=lambda peer, reason: self.faults.append((peer, reason)),
            shunned=self.shunned,
            budget=self.budget,
        )


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(seed=2)


@pytest.fixture
def payload() -> Made:
    return made(size=NUM_CHUNKS * MIN_CHUNK_BYTES - 99)


@asynccontextmanager
async def peer(
    hub: MemoryHub, folder: Path, number: int, *, to: tuple[Network, ...] = ()
) -> AsyncIterator[Peer]:
    async with hub.network(node_key(number)) as network, open_store(folder / str(number)) as store:
        for other in to:
            await network.connect(address_of(other))
        yield Peer(network, store)


@asynccontextmanager
async def hostile(
    hub: MemoryHub, number: int, serve: Serve, payload: Made
) -> AsyncIterator[Network]:
    key: Ed25519PrivateKey = node_key(number)
    async with hub.network(key) as network:

        async def handle(stream: Stream) -> None:
            await serve(stream, payload)

        network.serve(chunks.PROTOCOL_ID, handle, ServeLimits(max_frame_bytes=1024, timeout_s=3600))
        yield network


async def say(stream: Stream, reply: Reply) -> None:
    await stream.send(encode(reply, max_bytes=chunks.MAX_REPLY_BYTES))


async def hear(stream: Stream) -> Request:
    request: Request = decode(await stream.receive(), Request, max_bytes=1024)
    return request


async def offer_everything(stream: Stream, payload: Made) -> None:
    assert isinstance(await hear(stream), OpenPayload)
    bitmap = bitmap_of(range(len(payload.chunks)), num_chunks=len(payload.chunks))
    await say(stream, Holding(bitmap, has_hashes=True))


async def serve_nothing(stream: Stream, payload: Made) -> None:
    """Advertises everything and serves nothing."""
    await offer_everything(stream, payload)
    await trio.sleep_forever()


async def serve_one_chunk(stream: Stream, payload: Made) -> None:
    """Serves hashes and one chunk, then nothing."""
    await offer_everything(stream, payload)
    while True:
        match await hear(stream):
            case WantHashes():
                await say(stream, Hashes(payload.hashes))
            case WantChunk(index):
                await say(stream, Chunk(index, memoryview(payload.chunks[index])))
                break
            case OpenPayload() | Held() | DownloadDone():
                raise AssertionError
    while True:
        await hear(stream)


async def serve_garbage(stream: Stream, payload: Made) -> None:
    """Answers with bytes of the right length."""
    await offer_everything(stream, payload)
    while True:
        match await hear(stream):
            case WantHashes():
                await say(stream, Hashes(payload.hashes))
            case WantChunk(index):
                await say(stream, Chunk(index, memoryview(bytes(len(payload.chunks[index])))))
            case OpenPayload() | Held() | DownloadDone():
                raise AssertionError


async def flip_a_bit(stream: Stream, payload: Made) -> None:
    """Answers with one bit wrong."""
    await offer_everything(stream, payload)
    while True:
        match await hear(stream):
            case WantHashes():
                await say(stream, Hashes(payload.hashes))
            case WantChunk(index):
                data = bytearray(payload.chunks[index])
                data[len(data) // 2] ^= 1
                await say(stream, Chunk(index, memoryview(bytes(data))))
            case OpenPayload() | Held() | DownloadDone():
                raise AssertionError


async def serve_wrong_hashes(stream: Stream, payload: Made) -> None:
    await offer_everything(stream, payload)
    while True:
        await hear(stream)
        await say(stream, Hashes(bytes(len(payload.hashes))))


async def push_what_nobody_asked(stream: Stream, payload: Made) -> None:
    await offer_everything(stream, payload)
    for index in range(len(payload.chunks)):
        await say(stream, Chunk(index, memoryview(b"unasked")))


async def talk_nonsense(stream: Stream, _: Made) -> None:
    await hear(stream)
    while True:
        await stream.send(b"nonsense")


async def announce_beyond_the_last(stream: Stream, payload: Made) -> None:
    await offer_everything(stream, payload)
    await say(stream, Have((len(payload.chunks),)))
    await trio.sleep_forever()


async def break_off(stream: Stream, _: Made) -> None:
    await hear(stream)
    raise NetworkError("gone")


async def come_later(good: Peer, payload: Made) -> None:
    """Let a good holder have the payload when the bad one has shown what it is."""
    await trio.sleep(5)
    await good.put(payload)


@pytest.mark.parametrize(
    "case",
    [
        (serve_nothing, None),
        (break_off, None),
        (serve_garbage, Reason.BAD_CHUNK_HASH),
        (flip_a_bit, Reason.BAD_CHUNK_HASH),
        (push_what_nobody_asked, Reason.MALFORMED),
        (announce_beyond_the_last, Reason.MALFORMED),
    ],
)
async def test_a_bad_holder_beside_a_good_one_prevents_nothing(
    tmp_path: Path,
    hub: MemoryHub,
    payload: Made,
    autojump_clock: MockClock,
    case: tuple[Serve, Reason | None],
) -> None:
    serve, fault = case
    async with (
        peer(hub, tmp_path, 1) as good,
        hostile(hub, 2, serve, payload) as bad,
        peer(hub, tmp_path, 3, to=(good.network, bad)) as me,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_later, good, payload)
            with trio.fail_after(60):
                stored = await me.fetch(payload)

        assert stored.is_complete
        assert (stored.files / "a").read_bytes() == payload.files["a"]
        assert me.faults == ([] if fault is None else [(bad.peer, fault)])
        if fault is Reason.BAD_CHUNK_HASH:
            assert me.traffic.received_from[bad.peer]
            assert me.traffic.verified_from == {good.network.peer: len(payload.data)}


async def test_who_sends_wrong_bytes_is_served_nothing_for_a_while(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with (
        peer(hub, tmp_path, 1) as good,
        hostile(hub, 2, serve_garbage, payload) as bad,
        peer(hub, tmp_path, 3, to=(good.network, bad)) as me,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(come_later, good, payload)
        with trio.fail_after(60):
            await me.fetch(payload)

        async def first_answer() -> Reply:
            async with bad.open_stream(
                me.network.peer, chunks.PROTOCOL_ID, max_frame_bytes=chunks.MAX_REPLY_BYTES
            ) as stream:
                await ask(stream, OpenPayload(payload.ref.root_sha256))
                return await answer(stream)

        assert await first_answer() == ChunkRefused(Reason.BAD_CHUNK_HASH)
        await trio.sleep(SHUN_S)
        assert isinstance(await first_answer(), Holding)


@pytest.mark.parametrize("serve", [serve_wrong_hashes, talk_nonsense, serve_nothing])
async def test_with_only_a_bad_holder_nothing_counts_and_a_good_one_that_comes_later_is_used(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock, serve: Serve
) -> None:
    async with (
        hostile(hub, 2, serve, payload) as bad,
        peer(hub, tmp_path, 3, to=(bad,)) as me,
    ):
        with trio.move_on_after(100) as scope:
            await me.fetch(payload)
        assert scope.cancelled_caught
        stored = me.store.get(payload.ref.root_sha256)
        assert stored is not None
        assert stored.num_held == 0

        async with trio.open_nursery() as nursery, peer(hub, tmp_path, 1) as good:
            await good.put(payload)
            nursery.start_soon(me.fetch, payload)
            await trio.sleep(5)
            await me.network.connect(address_of(good.network))
            with trio.fail_after(60):
                await stored.wait_for_news(NUM_CHUNKS - 1)


async def test_chunks_are_passed_on_while_they_are_still_coming_in(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with (
        peer(hub, tmp_path, 1) as origin,
        peer(hub, tmp_path, 2, to=(origin.network,)) as middle,
        peer(hub, tmp_path, 3, to=(middle.network,)) as last,
        trio.open_nursery() as nursery,
    ):
        await origin.put(payload)
        nursery.start_soon(middle.fetch, payload)
        nursery.start_soon(last.fetch, payload)
        at_last = await last.store.wait_for(payload.ref.root_sha256)
        at_middle = await middle.store.wait_for(payload.ref.root_sha256)
        with trio.fail_after(60):
            await at_last.wait_for_news(3)
        assert not at_middle.is_whole
        with trio.fail_after(60):
            await at_last.wait_for_news(NUM_CHUNKS - 1)
        assert last.traffic.received_from.keys() == {middle.network.peer}


async def test_a_holder_that_dies_is_replaced_by_another(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with (
        peer(hub, tmp_path, 1) as first,
        peer(hub, tmp_path, 2) as second,
        peer(hub, tmp_path, 3, to=(first.network, second.network)) as me,
        trio.open_nursery() as nursery,
    ):
        await first.put(payload)
        await second.put(payload)
        nursery.start_soon(me.fetch, payload)
        stored = await me.store.wait_for(payload.ref.root_sha256)
        await stored.wait_for_news(5)
        hub.kill(first.network.peer)
        with trio.fail_after(60):
            await stored.wait_for_news(NUM_CHUNKS - 1)


async def test_a_download_that_is_cancelled_goes_on_where_it_was(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with (
        peer(hub, tmp_path, 1) as origin,
        peer(hub, tmp_path, 3, to=(origin.network,)) as me,
    ):
        await origin.put(payload)
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            nursery.start_soon(me.fetch, payload)
            stored = await me.store.wait_for(payload.ref.root_sha256)
            await stored.wait_for_news(9)
            nursery.cancel_scope.cancel()
        num_held = stored.num_held
        assert 10 <= num_held < NUM_CHUNKS
        assert not stored.is_complete
        await trio.sleep(10)
        assert trio.lowlevel.current_statistics().tasks_living == tasks

        with trio.fail_after(60):
            assert (await me.fetch(payload)).is_complete
        assert me.traffic.received_bytes <= len(payload.data) + 2 * MIN_CHUNK_BYTES


async def test_progress_tells_bytes_and_rate(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with (
        peer(hub, tmp_path, 1) as origin,
        peer(hub, tmp_path, 3, to=(origin.network,)) as me,
    ):
        await origin.put(payload)
        with trio.fail_after(60):
            await me.fetch(payload)

        held = [p.held_bytes for p in me.progress]
        assert held == sorted(held)
        assert held[-1] == len(payload.data)
        assert {p.total_bytes for p in me.progress} == {len(payload.data)}
        assert all(p.bytes_per_s > 0 for p in me.progress)
        assert origin.traffic.sent_to == {me.network.peer: len(payload.data)}


async def test_what_is_complete_is_not_fetched_again(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with peer(hub, tmp_path, 3) as me:
        stored = await me.put(payload)
        with trio.fail_after(1):
            assert await me.fetch(payload) is stored


async def test_a_broken_disk_ends_the_download_with_its_message(
    tmp_path: Path,
    hub: MemoryHub,
    payload: Made,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        peer(hub, tmp_path, 1) as origin,
        peer(hub, tmp_path, 3, to=(origin.network,)) as me,
    ):
        await origin.put(payload)

        async def fail(*_: object) -> None:
            await trio.lowlevel.checkpoint()
            raise StoreError("no space left")

        monkeypatch.setattr(me.store, "put_chunk", fail)
        with trio.fail_after(60), pytest.raises(StoreError, match="no space left"):
            await me.fetch(payload)


async def test_a_chunk_whose_holder_is_dropped_while_it_is_being_written_is_not_lost(
    tmp_path: Path,
    hub: MemoryHub,
    payload: Made,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        hostile(hub, 2, serve_one_chunk, payload) as teaser,
        peer(hub, tmp_path, 3, to=(teaser,)) as me,
    ):
        put_chunk = me.store.put_chunk

        async def put_slowly(stored: Payload, index: int, data: bytes) -> None:
            await trio.sleep(40)
            await put_chunk(stored, index, data)

        monkeypatch.setattr(me.store, "put_chunk", put_slowly)
        with trio.fail_after(10_000):
            await me.fetch(payload)


# The holder's side, asked by a downloader without manners.


@asynccontextmanager
async def asking(hub: MemoryHub, origin: Peer, number: int = 9) -> AsyncIterator[Stream]:
    async with hub.network(node_key(number)) as network:
        await network.connect(address_of(origin.network))
        async with network.open_stream(
            origin.network.peer, chunks.PROTOCOL_ID, max_frame_bytes=chunks.MAX_REPLY_BYTES
        ) as stream:
            yield stream


async def ask(stream: Stream, request: Request) -> None:
    await stream.send(encode(request, max_bytes=1024))


async def answer(stream: Stream) -> Reply:
    with trio.fail_after(60):
        reply: Reply = decode(await stream.receive(), Reply, max_bytes=chunks.MAX_REPLY_BYTES)
        return reply


async def ask_all(stream: Stream, requests: list[Request]) -> None:
    for request in requests:
        await ask(stream, request)
    for _ in range(50):
        await answer(stream)


async def test_an_unknown_payload_is_refused(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    async with peer(hub, tmp_path, 1) as origin, asking(hub, origin) as stream:
        await ask(stream, OpenPayload(bytes(32)))
        assert await answer(stream) == ChunkRefused(Reason.UNKNOWN_PAYLOAD)


async def test_a_payload_that_is_announced_a_moment_later_is_not_refused(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with peer(hub, tmp_path, 1) as origin, asking(hub, origin) as stream:
        await ask(stream, OpenPayload(payload.ref.root_sha256))
        await trio.sleep(1)
        await origin.put(payload)
        assert isinstance(await answer(stream), Holding)


async def test_only_what_is_held_is_offered_and_news_follows(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with peer(hub, tmp_path, 1) as origin, asking(hub, origin) as stream:
        stored = await origin.put(payload, num_chunks=3)
        await ask(stream, OpenPayload(payload.ref.root_sha256))
        assert await answer(stream) == Holding(bitmap_of(range(3), num_chunks=NUM_CHUNKS), True)
        await ask(stream, WantChunk(7))
        assert await answer(stream) == ChunkRefused(Reason.UNKNOWN_CHUNK, 7)
        await origin.store.put_chunk(stored, 7, payload.chunks[7])
        assert await answer(stream) == Have((7,))
        await ask(stream, WantChunk(7))
        assert await answer(stream) == Chunk(7, memoryview(payload.chunks[7]))
        await ask(stream, WantHashes())
        assert await answer(stream) == Hashes(payload.hashes)


async def test_a_payload_that_was_deleted_meanwhile_is_refused(
    tmp_path: Path, hub: MemoryHub, payload: Made, autojump_clock: MockClock
) -> None:
    async with peer(hub, tmp_path, 1) as origin, asking(hub, origin) as stream:
        await origin.put(payload, num_chunks=3)
        await ask(stream, OpenPayload(payload.ref.root_sha256))
        await answer(stream)
        await origin.store.prune(keep=())
        again = await origin.put(payload, num_chunks=1)  # and begun again
        with (again.files / "a").open("r+b") as file:
            file.write(b"other bytes")
        await ask(stream, WantChunk(0))
        assert await answer(stream) == ChunkRefused(Reason.UNKNOWN_PAYLOAD, 0)


@pytest.mark.parametrize(
    "requests",
    [
        [WantChunk(0)],
        [OpenPayload(bytes(32)), OpenPayload(bytes(32))],
        [WantChunk(0)] * 100,  # and not one answer is taken
        [WantChunk(NUM_CHUNKS)],
    ],
)
async def test_a_downloader_that_breaks_the_protocol_loses_its_stream_and_nobody_else_does(
    tmp_path: Path,
    hub: MemoryHub,
    payload: Made,
    autojump_clock: MockClock,
    requests: list[Request],
) -> None:
    async with (
        peer(hub, tmp_path, 1) as origin,
        asking(hub, origin, 8) as polite,
        asking(hub, origin, 9) as rude,
    ):
        await origin.put(payload)
        await ask(polite, OpenPayload(payload.ref.root_sha256))
        assert isinstance(await answer(polite), Holding)
        if len(requests) != 1 or requests == [WantChunk(NUM_CHUNKS)]:
            await ask(rude, OpenPayload(payload.ref.root_sha256))
            await answer(rude)
        with pytest.raises(NetworkError):
            await ask_all(rude, requests)
        await ask(polite, WantChunk(0))
        assert await answer(polite) == Chunk(0, memoryview(payload.chunks[0]))


async def test_a_cap_on_downloads_is_kept_and_used_and_follows_changes(
    autojump_clock: MockClock, tmp_path: Path, hub: MemoryHub, payload: Made
) -> None:
    rate = 2.0 * MIN_CHUNK_BYTES
    async with (
        peer(hub, tmp_path, 1) as first,
        peer(hub, tmp_path, 2) as second,
        peer(hub, tmp_path, 3, to=(first.network, second.network)) as node,
    ):
        for holder in (first, second):
            await holder.put(payload)
        node.budget = DownloadBudget(rate)
        began_s = trio.current_time()
        with trio.fail_after(100):
            await node.fetch(payload)
        took_s = trio.current_time() - began_s

        assert (NUM_CHUNKS - 2) / 2 <= took_s <= NUM_CHUNKS / 2 + 5
        assert (
            min(first.traffic.sent_bytes, second.traffic.sent_bytes) > 0.3 * payload.ref.size_bytes
        )
        assert node.faults == []


async def test_a_peer_that_rests_is_asked_again_later_and_blamed_for_nothing(
    autojump_clock: MockClock, tmp_path: Path, hub: MemoryHub, payload: Made
) -> None:
    async with (
        peer(hub, tmp_path, 1) as holder,
        peer(hub, tmp_path, 2, to=(holder.network,)) as node,
    ):
        await holder.put(payload)
        holder.is_open = False
        with trio.move_on_after(20) as scope:
            await node.fetch(payload)
        assert scope.cancelled_caught
        assert holder.traffic.sent_bytes == 0

        holder.is_open = True
        with trio.fail_after(60):
            await node.fetch(payload)
    assert node.faults == []
