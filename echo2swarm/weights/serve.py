"""Serve chunks to whoever asks, also of what is still being downloaded.

The I/O around :class:`protocols.chunk_serve.ServeSession`.
"""

from math import inf
from typing import Final, assert_never

import structlog
import trio

from echo2swarm.errors import NetworkError, StoreError
from echo2swarm.network.base import Network, ServeLimits, Stream
from echo2swarm.weights.payload import Payload
from echo2swarm.weights.store import PayloadStore
from echo2swarm.weights.traffic import Traffic
from protocols import chunks
from protocols.chunk_serve import (
    Effect,
    LookUp,
    SendChunk,
    SendHashes,
    SendRefusal,
    ServeSession,
)
from protocols.chunks import (
    MAX_HAVE_INDICES,
    MAX_OUTSTANDING,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Chunk,
    Hashes,
    Have,
    Holding,
    Refused,
    Reply,
    Request,
)
from protocols.codec import decode, encode
from protocols.errors import LocalProtocolError
from protocols.ids import short
from protocols.reasons import Reason

LOOK_UP_S: Final = 3.0
"""A payload nobody here has heard of may be announced within this: news travels on many ways."""
IDLE_S: Final = 600.0
"""A downloader that asks for nothing this long is gone."""
SEND_S: Final = 60.0
"""A downloader that does not take one answer within this is gone."""
NEWS_S: Final = 0.05
"""News of chunks waits this long for more of it: a message costs as much for one as for many."""
MAX_STREAMS: Final = 64
MAX_STREAMS_PER_PEER: Final = 8

_log = structlog.get_logger()


class ChunkServer:
    """Answers ``/echo2/chunks`` out of a store, as long as the network lives."""

    def __init__(self, network: Network, store: PayloadStore, traffic: Traffic) -> None:
        self._store = store
        self._traffic = traffic
        network.serve(
            chunks.PROTOCOL_ID,
            self._serve,
            ServeLimits(
                max_frame_bytes=MAX_REQUEST_BYTES,
                max_streams=MAX_STREAMS,
                max_streams_per_peer=MAX_STREAMS_PER_PEER,
                timeout_s=inf,  # each step has its own deadline
            ),
        )

    async def _serve(self, stream: Stream) -> None:
        session = ServeSession()
        look_up = session.request_received(await _receive(stream, within_s=SEND_S))
        if not isinstance(look_up, LookUp):
            raise LocalProtocolError(f"{look_up} is no answer to a first request")
        payload = None
        with trio.move_on_after(LOOK_UP_S):
            payload = await self._store.wait_for(look_up.root_sha256)
        if payload is None:
            await _send(stream, Refused(session.not_found().reason))
            return
        session.found(num_chunks=payload.ref.num_chunks, holds=payload.holds)
        num_told = payload.num_held
        await _send(stream, Holding(payload.bitmap(), payload.hashes is not None))
        async with trio.open_nursery() as nursery:
            # As long as what a downloader may have open: the reader never waits for the answerer.
            to_do, next_to_do = trio.open_memory_channel[Effect](MAX_OUTSTANDING)
            nursery.start_soon(self._answer_requests, stream, payload, session, next_to_do)
            nursery.start_soon(_tell_news, stream, payload, num_told)
            try:
                while True:
                    to_do.send_nowait(
                        session.request_received(await _receive(stream, within_s=IDLE_S))
                    )
            except NetworkError:
                # The downloader has what it wanted, or is gone.
                nursery.cancel_scope.cancel()

    async def _answer_requests(
        self,
        stream: Stream,
        payload: Payload,
        session: ServeSession,
        to_do: "trio.MemoryReceiveChannel[Effect]",
    ) -> None:
        async for effect in to_do:
            await self._answer(stream, payload, effect)
            session.answered()

    async def _answer(self, stream: Stream, payload: Payload, effect: Effect) -> None:
        match effect:
            case SendHashes():
                if payload.hashes is None:
                    await _send(stream, Refused(Reason.UNKNOWN_PAYLOAD))
                else:
                    await _send(stream, Hashes(payload.hashes))
            case SendChunk(index):
                try:
                    data = await self._store.read_chunk(payload, index)
                except StoreError as exc:
                    _log.info("chunk.unreadable", peer=short(stream.peer), error=str(exc))
                    await _send(stream, Refused(Reason.UNKNOWN_PAYLOAD, index))
                    return
                await _send(stream, Chunk(index, data))
                self._traffic.add_sent(stream.peer, len(data))
            case SendRefusal(reason, index):
                await _send(stream, Refused(reason, index))
            case LookUp():
                raise LocalProtocolError("a payload is looked up once")
            case _:
                assert_never(effect)


async def _tell_news(stream: Stream, payload: Payload, num_told: int) -> None:
    while num_told < payload.ref.num_chunks:
        await payload.wait_for_news(num_told)
        if payload.num_held < payload.ref.num_chunks:
            await trio.sleep(NEWS_S)
        news = payload.arrived_since(num_told)[:MAX_HAVE_INDICES]
        num_told += len(news)
        await _send(stream, Have(tuple(news)))


async def _receive(stream: Stream, *, within_s: float) -> Request:
    try:
        with trio.fail_after(within_s):
            frame = await stream.receive()
    except trio.TooSlowError:
        raise NetworkError(f"{short(stream.peer)} asked for nothing for {within_s:g} s") from None
    request: Request = decode(frame, Request, max_bytes=MAX_REQUEST_BYTES)
    return request


async def _send(stream: Stream, reply: Reply) -> None:
    frame = encode(reply, max_bytes=MAX_REPLY_BYTES)
    try:
        with trio.fail_after(SEND_S):
            await stream.send(frame)
    except trio.TooSlowError:
        raise NetworkError(f"{short(stream.peer)} did not take an answer in {SEND_S:g} s") from None
