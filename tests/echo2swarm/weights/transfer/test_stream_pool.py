"""Streams that stay open from one payload to the next."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from echo2swarm.network.base import Network, ServeLimits, Stream
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import PayloadStore, open_store
from echo2swarm.weights.transfer import serve as serve_module
from echo2swarm.weights.transfer import stream_pool as lines_module
from echo2swarm.weights.transfer.fetch import RESUME_S, fetch_payload
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.stream_pool import StreamPool
from echo2swarm.weights.transfer.traffic import Traffic
from protocols import chunks
from protocols.chunks import (
    MAX_OUTSTANDING,
    MAX_REPLY_BYTES,
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

NUM_CHUNKS = 12


def payload_number(number: int) -> Made:
    return made(size=NUM_CHUNKS * MIN_CHUNK_BYTES - number)


class Counting:
    """A network that counts the streams opened to fetch chunks."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.num_opened = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._network, name)

    def open_stream(self, peer: PeerId, protocol: str, **options: object) -> object:
        self.num_opened += 1
        return self._network.open_stream(peer, protocol, **options)  # type: ignore[arg-type]


class Downloader:
    """Fetches over kept lines."""

    def __init__(self, network: Network, store: PayloadStore) -> None:
        self.network = Counting(network)
        self.store = store
        self.lines = StreamPool(self.network)  # type: ignore[arg-type]
        self.traffic = Traffic()
        self.faults: list[Reason] = []

    async def fetch(self, payload: Made, holder: PeerId) -> Payload:
        return await fetch_payload(
            self.lines,
            self.store,
            payload.ref,
            holders=lambda: [holder],
            source=None,
            rng=random.Random(0),
            traffic=self.traffic,
            on_fault=lambda _, reason: self.faults.append(reason),
        )


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(seed=3)


@asynccontextmanager
async def downloader(hub: MemoryHub, folder: Path, holder: Network) -> AsyncIterator[Downloader]:
    async with (
        hub.network(node_key(5)) as network,
        open_store(folder / "downloader") as store,
        trio.open_nursery() as nursery,
    ):
        await network.connect(address_of(holder))
        ours = Downloader(network, store)
        await nursery.start(ours.lines.run)
        yield ours
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def holder(hub: MemoryHub, folder: Path, *payloads: Made) -> AsyncIterator[Network]:
    async with hub.network(node_key(1)) as network, open_store(folder / "holder") as store:
        ChunkServer(network, store, Traffic())
        for payload in payloads:
            stored = await store.begin(payload.ref)
            await store.put_hashes(stored, payload.hashes)
            for index, chunk in enumerate(payload.chunks):
                await store.put_chunk(stored, index, chunk)
            await store.finish(stored)
        yield network


@asynccontextmanager
async def scripted(
    hub: MemoryHub, handle: Callable[[Stream], Awaitable[None]]
) -> AsyncIterator[Network]:
    async with hub.network(node_key(1)) as network:
        limits = ServeLimits(max_frame_bytes=1024, timeout_s=1e9)
        network.serve(chunks.PROTOCOL_ID, handle, limits)
        yield network


async def hear(stream: Stream) -> Request:
    request: Request = decode(await stream.receive(), Request, max_bytes=1024)
    return request


async def say(stream: Stream, reply: Reply) -> None:
    await stream.send(encode(reply, max_bytes=MAX_REPLY_BYTES))


async def serve_one(stream: Stream, payload: Made) -> None:
    """Serve until the downloader is done."""
    while True:
        match await hear(stream):
            case OpenPayload():
                everything = bitmap_of(range(NUM_CHUNKS), num_chunks=NUM_CHUNKS)
                await say(stream, Holding(everything, has_hashes=True))
            case WantHashes():
                await say(stream, Hashes(payload.hashes))
            case WantChunk(index):
                await say(stream, Chunk(index, memoryview(payload.chunks[index])))
            case DownloadDone():
                return
            case Held():
                raise AssertionError


async def test_the_next_payload_comes_over_the_stream_of_the_last(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payloads = [payload_number(i) for i in range(4)]
    async with (
        holder(hub, tmp_path, *payloads) as origin,
        downloader(hub, tmp_path, origin) as ours,
    ):
        for payload in payloads:
            assert (await ours.fetch(payload, origin.peer)).is_whole
            assert ours.lines.num_idle == 1
            await trio.sleep(1000)
        assert ours.network.num_opened == 1
        assert not ours.faults


async def test_without_anybody_to_keep_it_a_stream_is_not_kept(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payload = payload_number(0)
    async with (
        holder(hub, tmp_path, payload) as origin,
        hub.network(node_key(5)) as network,
        open_store(tmp_path / "ours") as store,
    ):
        await network.connect(address_of(origin))
        ours = Downloader(network, store)
        await ours.fetch(payload, origin.peer)
        assert ours.lines.num_idle == 0


async def test_a_kept_stream_whose_holder_ended_it_is_forgotten_at_once(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payloads = [payload_number(i) for i in range(2)]
    ending = trio.Event()

    async def handle(stream: Stream) -> None:
        await serve_one(stream, payloads[0])
        await ending.wait()

    async with scripted(hub, handle) as origin, downloader(hub, tmp_path, origin) as ours:
        await ours.fetch(payloads[0], origin.peer)
        assert ours.lines.num_idle == 1
        ending.set()
        await trio.sleep(1)
        assert ours.lines.num_idle == 0


async def test_a_kept_stream_that_died_unnoticed_costs_seconds_and_no_reputation(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payloads = [payload_number(i) for i in range(2)]
    num_streams = 0

    async def handle(stream: Stream) -> None:
        nonlocal num_streams
        num_streams += 1
        await serve_one(stream, payloads[num_streams - 1])
        while True:
            await stream.receive()  # and never another word

    async with scripted(hub, handle) as origin, downloader(hub, tmp_path, origin) as ours:
        await ours.fetch(payloads[0], origin.peer)
        began_s = trio.current_time()
        await ours.fetch(payloads[1], origin.peer)
        assert num_streams == 2
        assert trio.current_time() - began_s < RESUME_S + 1
        assert not ours.faults


async def test_answers_about_the_payload_before_are_not_taken_for_the_next(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payloads = [payload_number(i) for i in range(2)]

    async def handle(stream: Stream) -> None:
        await serve_one(stream, payloads[0])
        assert isinstance(await hear(stream), OpenPayload)
        # All that a holder may still have been saying.
        await say(stream, Have((0, 3)))
        await say(stream, Chunk(1, memoryview(payloads[0].chunks[1])))
        await say(stream, ChunkRefused(Reason.UNKNOWN_CHUNK, 4))
        await say(stream, Hashes(payloads[0].hashes))
        everything = bitmap_of(range(NUM_CHUNKS), num_chunks=NUM_CHUNKS)
        await say(stream, Holding(everything, has_hashes=True))
        await serve_one(stream, payloads[1])

    async with scripted(hub, handle) as origin, downloader(hub, tmp_path, origin) as ours:
        for payload in payloads:
            await ours.fetch(payload, origin.peer)
        assert ours.network.num_opened == 1
        assert not ours.faults


async def test_what_is_still_under_way_when_a_payload_is_done_is_taken_and_thrown_away(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payload = payload_number(0)
    is_rid_of_it = trio.Event()

    async def handle(stream: Stream) -> None:
        await serve_one(stream, payload)
        await say(stream, Chunk(1, memoryview(payload.chunks[1])))
        is_rid_of_it.set()
        await trio.sleep_forever()

    async with scripted(hub, handle) as origin, downloader(hub, tmp_path, origin) as ours:
        await ours.fetch(payload, origin.peer)
        await is_rid_of_it.wait()
        assert ours.lines.num_idle == 1


async def test_a_holder_that_goes_on_and_on_after_done_is_hung_up_on(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = payload_number(0)
    monkeypatch.setattr(lines_module, "MAX_LEFT_BYTES", 10 * MIN_CHUNK_BYTES)

    async def handle(stream: Stream) -> None:
        await serve_one(stream, payload)
        for _ in range(10):
            await say(stream, Chunk(1, memoryview(payload.chunks[1])))
        await trio.sleep_forever()

    async with scripted(hub, handle) as origin, downloader(hub, tmp_path, origin) as ours:
        await ours.fetch(payload, origin.peer)
        await trio.sleep(10)
        assert ours.lines.num_idle == 0


async def test_the_stream_of_a_holder_of_garbage_is_not_kept(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payload = payload_number(0)
    garbage = payload_number(0)
    garbage.chunks.reverse()

    async def handle(stream: Stream) -> None:
        await serve_one(stream, garbage)

    async with scripted(hub, handle) as origin, downloader(hub, tmp_path, origin) as ours:
        with trio.move_on_after(100):
            await ours.fetch(payload, origin.peer)
        assert ours.faults
        assert ours.lines.num_idle == 0


async def test_a_download_that_is_given_up_leaves_its_stream_for_the_next_one(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payloads = [payload_number(i) for i in range(2)]
    async with (
        holder(hub, tmp_path, *payloads) as origin,
        downloader(hub, tmp_path, origin) as ours,
    ):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.fetch, payloads[0], origin.peer)
                while not ours.traffic.received_bytes:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                scope.cancel()
        assert (await ours.fetch(payloads[1], origin.peer)).is_whole
        assert ours.network.num_opened == 1
        assert not ours.faults


async def test_a_full_holder_keeps_no_idle_stream(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "MAX_KEPT", 0)
    payload = payload_number(0)
    async with holder(hub, tmp_path, payload) as origin, downloader(hub, tmp_path, origin) as ours:
        await ours.fetch(payload, origin.peer)
        await trio.sleep(1)
        assert ours.lines.num_idle == 0


async def test_what_was_asked_for_before_done_is_not_sent_any_more(
    tmp_path: Path, hub: MemoryHub, autojump_clock: MockClock
) -> None:
    payload = payload_number(0)
    async with (
        holder(hub, tmp_path, payload) as origin,
        hub.network(node_key(5)) as network,
    ):
        await network.connect(address_of(origin))
        async with network.open_stream(
            origin.peer, chunks.PROTOCOL_ID, max_frame_bytes=MAX_REPLY_BYTES
        ) as stream:
            for request in (
                OpenPayload(payload.ref.root_sha256),
                *[WantChunk(i % NUM_CHUNKS) for i in range(MAX_OUTSTANDING)],
                DownloadDone(),
                OpenPayload(payload.ref.root_sha256),
            ):
                await stream.send(encode(request, max_bytes=1024))
            replies: list[Reply] = []
            while sum(isinstance(reply, Holding) for reply in replies) < 2:
                replies.append(
                    decode(await stream.receive(), Reply, max_bytes=chunks.MAX_REPLY_BYTES)
                )
            assert len(replies) < MAX_OUTSTANDING
            await stream.send(encode(WantChunk(2), max_bytes=1024))
            reply = decode(await stream.receive(), Reply, max_bytes=chunks.MAX_REPLY_BYTES)
            assert reply == Chunk(2, memoryview(payload.chunks[2]))
    await wait_all_tasks_blocked()
