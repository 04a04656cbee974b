"""Serve chunks to whoever asks, also of what is still being downloaded.

The I/O around :class:`protocols.chunk_upload.UploadSession`. A node offers all it holds; the
source of what it published deals it (:mod:`echo2swarm.weights.transfer.seeding`).
"""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Final, assert_never

import structlog
import trio

from echo2swarm.network.base import Network, ServeLimits, Stream
from echo2swarm.system.errors import NetworkError, StoreError
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import PayloadStore
from echo2swarm.weights.transfer.availability import Availability, FullAvailability, in_messages
from echo2swarm.weights.transfer.banned import BanList
from echo2swarm.weights.transfer.rate_limit import UploadBudget
from echo2swarm.weights.transfer.seeding import SeedingSession, UploadRateOf
from echo2swarm.weights.transfer.traffic import Traffic
from protocols import chunks
from protocols.chunk_upload import (
    Effect,
    EndTurn,
    LookUp,
    NoteHeld,
    SendChunk,
    SendHashes,
    SendRefusal,
    UploadSession,
)
from protocols.chunks import (
    MAX_OUTSTANDING,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    ChunkRefused,
    Hashes,
    Have,
    Holding,
    Reply,
    Request,
    bitmap_of,
    in_two_parts,
    indices_in,
)
from protocols.codec import decode, encode
from protocols.errors import LocalProtocolError
from protocols.ids import PeerId, short
from protocols.reasons import Reason

LOOK_UP_S: Final = 3.0
"""A payload nobody here has heard of may be announced within this: news travels on many ways."""
IDLE_S: Final = 600.0
"""A downloader that asks for nothing this long is gone."""
BETWEEN_S: Final = 3600.0
"""A stream on which no payload is asked for is kept open this long, while there is room."""
SEND_S: Final = 60.0
"""A downloader that does not take one answer within this is gone."""
MAX_STREAMS: Final = 256
MAX_STREAMS_PER_PEER: Final = 8
MAX_KEPT: Final = MAX_STREAMS // 2
"""With more streams than this, none is kept once its payload is done: others need the room."""

_log = structlog.get_logger()


class ChunkServer:
    """Answers ``/echo2/chunks`` out of a store, as long as the network lives.

    Args:
        network: ours.
        store: what is served.
        traffic: counts what is sent.
        shunned: who is served nothing.
        budget: what may be uploaded; None for all that the line carries.
        upload_rate_of: set at a source: it deals, by the peers' measured uploads.
        rng: breaks the dealer's ties.
        is_open: whether to serve now; whoever asks otherwise is told to come later.
    """

    def __init__(
        self,
        network: Network,
        store: PayloadStore,
        traffic: Traffic,
        *,
        shunned: BanList | None = None,
        budget: UploadBudget | None = None,
        upload_rate_of: UploadRateOf | None = None,
        rng: random.Random | None = None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._is_open = is_open
        self._store = store
        self._traffic = traffic
        self._shunned = shunned or BanList()
        self._budget = budget or UploadBudget()
        self._upload_rate_of = upload_rate_of
        self._rng = rng or random.Random()  # noqa: S311 - nobody gains by guessing
        self._tables: dict[bytes, SeedingSession] = {}
        self._num_streams = 0
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
        self._num_streams += 1
        try:
            session = UploadSession()
            within_s = SEND_S
            while await self._serve_payload(stream, session, within_s=within_s):
                if self._num_streams > MAX_KEPT:
                    return
                within_s = BETWEEN_S
        finally:
            self._num_streams -= 1

    async def _serve_payload(
        self, stream: Stream, session: UploadSession, *, within_s: float
    ) -> bool:
        """Serve one payload; returns whether the downloader may ask for another afterwards."""
        try:
            request = await _receive(stream, within_s=within_s)
        except NetworkError:
            if within_s == BETWEEN_S:
                return False  # It had all that it wanted.
            raise
        if stream.peer in self._shunned:
            await _send(stream, ChunkRefused(Reason.BAD_CHUNK_HASH))
            return False
        if not self._is_open():
            await _send(stream, ChunkRefused(Reason.RATE_LIMITED))
            return False
        look_up = session.request_received(request)
        if not isinstance(look_up, LookUp):
            raise LocalProtocolError(f"{look_up} is no answer to a first request")
        payload = None
        with trio.move_on_after(LOOK_UP_S):
            payload = await self._store.wait_for(look_up.root_sha256)
        if payload is None:
            await _send(stream, ChunkRefused(session.not_found().reason))
            return False
        held: list[int] = []
        if look_up.held:
            held += indices_in(look_up.held, num_chunks=payload.ref.num_chunks)
        with self._offering(stream.peer, payload, held) as offering:
            session.found(num_chunks=payload.ref.num_chunks, holds=offering.may_have)
            bitmap = bitmap_of(offering.take_news(), num_chunks=payload.ref.num_chunks)
            await _send(stream, Holding(bitmap, payload.hashes is not None))
            return await self._converse(stream, payload, session, offering)

    @contextmanager
    def _offering(
        self, peer: PeerId, payload: Payload, held: Sequence[int]
    ) -> Iterator[Availability]:
        """Offer everything, or a seat where it is dealt."""
        if self._upload_rate_of is None or not payload.is_complete:
            yield FullAvailability(payload)
            return
        if payload.root not in self._tables:
            self._tables[payload.root] = SeedingSession(payload, self._rng, self._upload_rate_of)
        table = self._tables[payload.root]
        try:
            with table.seat(peer, held) as seat:
                yield seat
        finally:
            if table.is_empty:
                self._tables.pop(payload.root, None)

    async def _converse(
        self, stream: Stream, payload: Payload, session: UploadSession, offering: Availability
    ) -> bool:
        """Answer until the downloader is done (returns True), or gone."""
        turn = _Turn()
        async with trio.open_nursery() as nursery:
            # As long as what a downloader may have open: the reader never waits for the answerer.
            to_do, next_to_do = trio.open_memory_channel[Effect](MAX_OUTSTANDING)
            nursery.start_soon(
                partial(
                    self._answer_requests,
                    stream,
                    payload,
                    session=session,
                    offering=offering,
                    to_do=next_to_do,
                    turn=turn,
                )
            )
            nursery.start_soon(_tell_news, stream, offering, turn)
            nursery.start_soon(turn.do, offering.watch)
            try:
                while stream.peer not in self._shunned:
                    effect = session.request_received(await _receive(stream, within_s=IDLE_S))
                    match effect:
                        case NoteHeld(indices):
                            offering.held(indices)
                        case SendChunk(index):
                            offering.asked(index)
                            to_do.send_nowait(effect)
                        case EndTurn():
                            # Whoever is sending finishes: half a frame would spoil the stream.
                            turn.end()
                            to_do.close()
                            return True
                        case _:
                            to_do.send_nowait(effect)
            except NetworkError:
                pass  # The downloader has what it wanted, or is gone.
            nursery.cancel_scope.cancel()
        return False

    async def _answer_requests(
        self,
        stream: Stream,
        payload: Payload,
        *,
        session: UploadSession,
        offering: Availability,
        to_do: "trio.MemoryReceiveChannel[Effect]",
        turn: "_Turn",
    ) -> None:
        async for effect in to_do:
            await self._answer(stream, payload, effect, turn)
            if turn.is_over:
                return
            if isinstance(effect, SendChunk):
                offering.sent(effect.index)
            session.answered()

    async def _answer(
        self, stream: Stream, payload: Payload, effect: Effect, turn: "_Turn"
    ) -> None:
        match effect:
            case SendHashes():
                if payload.hashes is None:
                    await _send(stream, ChunkRefused(Reason.UNKNOWN_PAYLOAD))
                else:
                    await _send(stream, Hashes(payload.hashes))
            case SendChunk(index):
                if not self._is_open():
                    await _send(stream, ChunkRefused(Reason.RATE_LIMITED, index))
                    return
                try:
                    data = await self._store.read_chunk(payload, index)
                except StoreError as exc:
                    _log.info("chunk.unreadable", peer=short(stream.peer), error=str(exc))
                    await _send(stream, ChunkRefused(Reason.UNKNOWN_PAYLOAD, index))
                    return
                await turn.do(self._budget.wait, len(data))
                if turn.is_over:
                    return
                await _send_parts(stream, *in_two_parts(index, data))
                self._traffic.add_sent(stream.peer, len(data))
            case SendRefusal(reason, index):
                await _send(stream, ChunkRefused(reason, index))
            case LookUp() | NoteHeld() | EndTurn():
                raise LocalProtocolError(f"{type(effect).__name__} is nothing to answer")
            case _:
                assert_never(effect)


async def _tell_news(stream: Stream, offering: Availability, turn: "_Turn") -> None:
    while True:
        await turn.do(offering.wait_for_news)
        if turn.is_over:
            return
        for indices in in_messages(offering.take_news()):
            await _send(stream, Have(indices))


class _Turn:
    """One payload's time on a stream: when it ends, all waiting ends, and no sending."""

    def __init__(self) -> None:
        self.is_over = False
        self._scopes: set[trio.CancelScope] = set()

    async def do(self, wait: Callable[..., Awaitable[object]], *args: object) -> None:
        """Await ``wait``, which must be no sending, as long as the turn lasts."""
        if self.is_over:
            return
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                await wait(*args)
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        """End the turn."""
        self.is_over = True
        for scope in self._scopes:
            scope.cancel()


async def _receive(stream: Stream, *, within_s: float) -> Request:
    try:
        with trio.fail_after(within_s):
            frame = await stream.receive()
    except trio.TooSlowError:
        raise NetworkError(f"{short(stream.peer)} asked for nothing for {within_s:g} s") from None
    request: Request = decode(frame, Request, max_bytes=MAX_REQUEST_BYTES)
    return request


async def _send(stream: Stream, reply: Reply) -> None:
    await _send_parts(stream, encode(reply, max_bytes=MAX_REPLY_BYTES))


async def _send_parts(stream: Stream, *parts: bytes) -> None:
    try:
        with trio.fail_after(SEND_S):
            await stream.send(*parts)
    except trio.TooSlowError:
        raise NetworkError(f"{short(stream.peer)} did not take an answer in {SEND_S:g} s") from None
