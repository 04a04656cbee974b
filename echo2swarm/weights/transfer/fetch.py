"""Fetch one payload from all who hold parts of it, while they come and go.

The I/O around :class:`protocols.chunk_download.ChunkDownload`. What arrives is checked,
written, and from then on offered to others by
:class:`~echo2swarm.weights.transfer.serve.ChunkServer`; so a payload is relayed while it
is still being fetched. What is here already is not fetched again.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, assert_never

import structlog
import trio

from echo2swarm.network.base import Stream
from echo2swarm.system.errors import NetworkError, StoreError
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import PayloadStore
from echo2swarm.weights.transfer.availability import FullAvailability, in_messages
from echo2swarm.weights.transfer.banned import BanList
from echo2swarm.weights.transfer.rate_limit import DownloadBudget
from echo2swarm.weights.transfer.stream_pool import GOODBYE_S, PooledStream, StreamPool
from echo2swarm.weights.transfer.traffic import Traffic
from protocols import chunks
from protocols.chunk_download import ChunkDownload
from protocols.chunk_effects import AskChunk, AskHashes, DropPeer, Effect, Finished
from protocols.chunk_source import DownloadSettings
from protocols.chunks import (
    MAX_OUTSTANDING,
    MAX_REQUEST_BYTES,
    Chunk,
    ChunkRefused,
    Hashes,
    Have,
    Held,
    Holding,
    OpenPayload,
    Reply,
    Request,
    WantChunk,
    WantHashes,
)
from protocols.codec import decode, encode
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId, short
from protocols.manifest import PayloadRef
from protocols.reasons import Reason

OPEN_S: Final = 15.0
"""A holder that has not said within this what it holds is tried again later."""
RESUME_S: Final = 5.0
"""The same on a kept stream, after which a new one is tried: it may have died unnoticed."""
MAX_SMALL_BYTES: Final = 512 * 1024
"""So little hardly delays control messages; a connection of its own would cost more."""
MAX_SMALL_HOLDERS: Final = 3
"""So many are asked for something small."""
MAX_CHECKS: Final = 4
"""Chunks that are checked and written at once, over all holders."""
LOOK_S: Final = 0.5
"""So often is looked for new holders and passed deadlines."""
PACED_LOOK_S: Final = 0.1
"""The same for what a cap on downloads lets be asked for next."""
FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0

HoldersSource = Callable[[], Iterable[PeerId]]
"""Returns the peers that may hold something now; ourselves among them does no harm."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """How far a download is."""

    held_bytes: int
    total_bytes: int
    bytes_per_s: float
    """Since it was begun or resumed."""


def _ignore(*_: object) -> None:
    """Take a report that nobody wants."""


async def fetch_payload(
    lines: StreamPool,
    store: PayloadStore,
    ref: PayloadRef,
    *,
    holders: HoldersSource,
    source: PeerId | None,
    rng: random.Random,
    traffic: Traffic,
    on_progress: Callable[[FetchProgress], None] = _ignore,
    on_fault: Callable[[PeerId, Reason], None] = _ignore,
    shunned: BanList | None = None,
    settings: DownloadSettings | None = None,
    budget: DownloadBudget | None = None,
) -> Payload:
    """Return the payload ``ref`` names, complete, once every chunk is here.

    Waits for holders as long as it takes; whoever calls decides when to give up,
    by cancelling. What has arrived by then stays, and the next call goes on from there.

    Args:
        lines: streams to holders; they are kept for the next payload.
        store: where it goes.
        ref: what to fetch.
        holders: asked again and again while the download runs.
        source: the learner, who is told what we have, and deals by it.
        rng: breaks ties.
        traffic: counts what arrives.
        on_progress: called after each chunk.
        on_fault: called for each holder that did what no honest one does.
        shunned: who sends wrong bytes is added.
        settings: timeouts and limits.
        budget: paces what is asked for; None for all that the line carries.

    Raises:
        StoreError: the disk is full or broken.
        MalformedMessageError: the reference contradicts what is here.
    """
    payload = await store.begin(ref)
    with store.pin(payload.root):
        if not payload.is_whole:
            core = ChunkDownload(
                num_chunks=ref.num_chunks,
                missing=payload.missing(),
                has_hashes=payload.hashes is not None,
                source=source,
                rng=rng,
                settings=settings,
                pacer=budget,
                chunk_bytes=ref.chunk_bytes,
            )
            fetch = _Fetch(
                core,
                lines=lines,
                store=store,
                payload=payload,
                traffic=traffic,
                on_progress=on_progress,
                on_fault=on_fault,
                source=source,
                shunned=shunned or BanList(),
                budget=budget,
            )
            await fetch.run(holders)
        await store.finish(payload)
    return payload


class _Fetch:
    """Feeds the core with what happens, and performs its effects."""

    def __init__(
        self,
        core: ChunkDownload,
        *,
        lines: StreamPool,
        store: PayloadStore,
        payload: Payload,
        traffic: Traffic,
        on_progress: Callable[[FetchProgress], None],
        on_fault: Callable[[PeerId, Reason], None],
        source: PeerId | None,
        shunned: BanList,
        budget: DownloadBudget | None,
    ) -> None:
        self._core = core
        self._budget = budget
        self._lines = lines
        self._borrowed: dict[PeerId, PooledStream] = {}
        self._store = store
        self._payload = payload
        self._traffic = traffic
        self._on_progress = on_progress
        self._on_fault = on_fault
        self._source = source
        self._shunned = shunned
        self._whole_fetch = trio.CancelScope()
        self._nursery: trio.Nursery
        self._free_checks = trio.Semaphore(MAX_CHECKS)
        self._failure: StoreError | None = None
        self._scopes: dict[PeerId, trio.CancelScope] = {}
        self._outboxes: dict[PeerId, trio.MemorySendChannel[Request]] = {}
        self._retries: dict[PeerId, tuple[float, float]] = {}
        """When to try a holder again, and after how long a pause that is."""
        self._started_s = trio.current_time()
        self._held_at_start_bytes = payload.held_bytes
        self._is_small = payload.ref.size_bytes <= MAX_SMALL_BYTES

    async def run(self, holders: HoldersSource) -> None:
        """Return once every chunk is here."""
        with self._whole_fetch:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch_deadlines)
                while True:
                    for peer in self._worth_opening(holders()):
                        self._scopes[peer] = trio.CancelScope()
                        nursery.start_soon(self._pull_from, peer, self._scopes[peer])
                    await trio.sleep(LOOK_S)
        if self._failure is not None:
            raise self._failure

    def _worth_opening(self, holders: Iterable[PeerId]) -> list[PeerId]:
        """Return whom to open a stream to now: for a small payload only a few, the source first."""
        others = set(holders) - self._scopes.keys() - {self._lines.peer}
        worth = [peer for peer in sorted(others) if self._may_open(peer)]
        if self._is_small:
            worth.sort(key=lambda peer: peer != self._source)
            del worth[max(0, MAX_SMALL_HOLDERS - len(self._scopes)) :]
        return worth

    def _may_open(self, peer: PeerId) -> bool:
        retry_at_s, _ = self._retries.get(peer, (-inf, 0.0))
        return not self._core.is_banned(peer) and trio.current_time() >= retry_at_s

    async def _watch_deadlines(self) -> None:
        while True:
            # A deadline that is set while we sleep is further away than this.
            latest_s = trio.current_time() + (LOOK_S if self._budget is None else PACED_LOOK_S)
            await trio.sleep_until(min(self._core.next_deadline_s(), latest_s))
            if self._core.next_deadline_s() <= trio.current_time():
                self._perform(self._core.deadline_passed(trio.current_time()))

    async def _pull_from(self, peer: PeerId, scope: trio.CancelScope) -> None:
        """Pull from one holder until it is dropped or lost; then it may be tried again."""
        scope.deadline = trio.current_time() + OPEN_S
        why = "no answer"
        with scope:
            try:
                if not await self._pull_over_line(peer, scope, fresh=False):
                    await self._pull_over_line(peer, scope, fresh=True)
            except NetworkError as exc:
                why = str(exc)
            except RemoteProtocolError as exc:
                self._perform(self._core.violated(peer, str(exc), exc.reason, _now_s()))
            except StoreError as exc:
                self._fail(exc)
        self._outboxes.pop(peer, None)
        del self._scopes[peer]
        _, last_pause_s = self._retries.get(peer, (0.0, FIRST_RETRY_S / 2))
        pause_s = min(2 * last_pause_s, MAX_RETRY_S)
        self._retries[peer] = (_now_s() + pause_s, pause_s)
        _log.debug("holder.closed", peer=short(peer), why=why, retry_s=pause_s)
        self._perform(self._core.holder_lost(peer, _now_s()))

    async def _pull_over_line(self, peer: PeerId, scope: trio.CancelScope, *, fresh: bool) -> bool:
        """Pull over one stream; returns False, soon, if it was a kept one that is dead."""
        async with self._lines.to(peer, bulk=not self._is_small, fresh=fresh) as line:
            told = FullAvailability(self._payload)
            told.take_news()
            answer = await self._begin(peer, line)
            if answer is None:
                return False
            if isinstance(answer, ChunkRefused):
                raise NetworkError(f"{short(peer)} refused: {answer.reason}")
            if not isinstance(answer, Holding):
                raise RemoteProtocolError(f"{type(answer).__name__} before Holding")
            scope.deadline = inf  # from here on, each request has its own
            line.is_sound = True
            self._borrowed[peer] = line
            try:
                await self._converse(peer, line.stream, scope, answer, told)
            except (NetworkError, RemoteProtocolError, StoreError):
                line.is_sound = False
                raise
            finally:
                del self._borrowed[peer]
        return True

    async def _begin(self, peer: PeerId, line: PooledStream) -> Reply | None:
        """Name the payload; returns the answer, or None if a kept line gives none."""
        held = self._payload.bitmap() if peer == self._source else b""
        opening = encode(OpenPayload(self._payload.root, held), max_bytes=MAX_REQUEST_BYTES)
        if not line.is_used:
            await line.stream.send(opening)
            return await self._receive(line.stream)
        try:
            with trio.move_on_after(RESUME_S):
                await line.stream.send(opening)
                while True:
                    answer = await self._receive(line.stream)
                    if _is_answer_to_open(answer):
                        return answer
                    if isinstance(answer, Chunk):
                        self._traffic.add_received(peer, len(answer.data))
        except NetworkError as exc:
            _log.debug("line.dead", peer=short(peer), error=str(exc))
        return None

    async def _converse(
        self,
        peer: PeerId,
        stream: Stream,
        scope: trio.CancelScope,
        holding: Holding,
        told: FullAvailability,
    ) -> None:
        failure: NetworkError | RemoteProtocolError | StoreError | None = None
        outbox, to_send = trio.open_memory_channel[Request](MAX_OUTSTANDING + 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_requests, stream, to_send, scope)
            if peer == self._source:
                nursery.start_soon(self._tell_held, stream, told, scope)
            self._outboxes[peer] = outbox
            self._perform(
                self._core.holder_opened(
                    peer, holding.bitmap, has_hashes=holding.has_hashes, now_s=_now_s()
                )
            )
            try:
                while True:
                    await self._take(peer, await self._receive(stream))
            except (NetworkError, RemoteProtocolError, StoreError) as exc:
                failure = exc
            nursery.cancel_scope.cancel()
        raise failure

    async def _send_requests(
        self,
        stream: Stream,
        to_send: "trio.MemoryReceiveChannel[Request]",
        scope: trio.CancelScope,
    ) -> None:
        try:
            async for request in to_send:
                await stream.send(encode(request, max_bytes=MAX_REQUEST_BYTES))
        except NetworkError:
            scope.cancel()

    async def _tell_held(
        self, stream: Stream, told: FullAvailability, scope: trio.CancelScope
    ) -> None:
        """Tell the source what has come from anywhere: it deals by it."""
        try:
            while True:
                await told.wait_for_news()
                await _send_held(stream, told)
        except NetworkError:
            scope.cancel()
        finally:
            if self._core.is_finished:
                # So that the source knows of one more who has everything.
                with (
                    suppress(NetworkError),
                    trio.CancelScope(shield=True, deadline=_now_s() + GOODBYE_S),
                ):
                    await _send_held(stream, told)

    async def _receive(self, stream: Stream) -> Reply:
        reply: Reply = decode(await stream.receive_view(), Reply, max_bytes=chunks.MAX_REPLY_BYTES)
        return reply

    async def _take(self, peer: PeerId, reply: Reply) -> None:
        match reply:
            case Have(indices):
                self._perform(self._core.have_received(peer, indices, _now_s()))
            case Chunk(index, data):
                await self._take_chunk(peer, index, data)
            case Hashes(sha256s):
                await self._take_hashes(peer, sha256s)
            case ChunkRefused(reason, index):
                self._perform(self._core.refused(peer, index, reason, _now_s()))
            case Holding():
                raise RemoteProtocolError("said twice what it holds")
            case _:
                assert_never(reply)

    async def _take_chunk(self, peer: PeerId, index: int, data: memoryview) -> None:
        self._traffic.add_received(peer, len(data))
        # So many wait in memory, however fast they come. Nothing is awaited after this: a chunk
        # that the core knows to have arrived is checked.
        await self._free_checks.acquire()
        is_missing = self._core.is_missing(index)
        # Before it is checked: the next request is on its way meanwhile.
        effects = self._core.chunk_arrived(peer, index, _now_s())
        self._perform(effects)
        if is_missing and not any(isinstance(e, DropPeer) and e.holder == peer for e in effects):
            self._nursery.start_soon(self._check_chunk, peer, index, data)
        else:
            self._free_checks.release()

    async def _check_chunk(self, peer: PeerId, index: int, data: memoryview) -> None:
        """Check and store a chunk while the next one comes; also if its holder is gone by now."""
        try:
            with trio.CancelScope(shield=True):
                await self._store.put_chunk(self._payload, index, data)
        except RemoteProtocolError:
            is_good = False
        except StoreError as exc:
            self._fail(exc)
            return
        else:
            is_good = True
            self._traffic.add_verified(peer, len(data))
            self._retries.pop(peer, None)
            self._report_progress()
        finally:
            self._free_checks.release()
        self._perform(self._core.chunk_checked(peer, index, is_good=is_good, now_s=_now_s()))

    def _fail(self, exc: StoreError) -> None:
        """End the download: the disk is no holder's fault, and no other would help."""
        self._failure = exc
        self._whole_fetch.cancel()

    async def _take_hashes(self, peer: PeerId, sha256s: bytes) -> None:
        try:
            await self._store.put_hashes(self._payload, sha256s)
        except RemoteProtocolError:
            is_good = False
        else:
            is_good = True
        self._perform(self._core.hashes_checked(peer, is_good=is_good, now_s=_now_s()))

    def _report_progress(self) -> None:
        elapsed_s = max(_now_s() - self._started_s, 1e-3)
        held_bytes = self._payload.held_bytes
        self._on_progress(
            FetchProgress(
                held_bytes=held_bytes,
                total_bytes=self._payload.ref.size_bytes,
                bytes_per_s=(held_bytes - self._held_at_start_bytes) / elapsed_s,
            )
        )

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskChunk(holder, index):
                    self._outboxes[holder].send_nowait(WantChunk(index))
                case AskHashes(holder):
                    self._outboxes[holder].send_nowait(WantHashes())
                case DropPeer(holder, why, fault):
                    self._drop(holder, why, fault)
                case Finished():
                    self._whole_fetch.cancel()
                case _:
                    assert_never(effect)

    def _drop(self, holder: PeerId, why: str, fault: Reason | None) -> None:
        if fault is None:
            _log.info("holder.dropped", peer=short(holder), why=why)
        else:
            _log.warning("holder.banned", peer=short(holder), why=why, reason=fault.value)
            self._on_fault(holder, fault)
        if fault is Reason.BAD_CHUNK_HASH:
            self._shunned.add(holder)
        self._outboxes.pop(holder, None)
        if holder in self._borrowed:
            self._borrowed[holder].is_sound = False
        if holder in self._scopes:
            self._scopes[holder].cancel()


def _is_answer_to_open(reply: Reply) -> bool:
    """Whether a reply on a used stream is about the new payload, and not the one before."""
    return isinstance(reply, Holding) or (isinstance(reply, ChunkRefused) and reply.index is None)


async def _send_held(stream: Stream, told: FullAvailability) -> None:
    for indices in in_messages(told.take_news()):
        await stream.send(encode(Held(indices), max_bytes=MAX_REQUEST_BYTES))


def _now_s() -> float:
    return trio.current_time()
