"""Streams to holders that stay open from one payload to the next.

To open one costs round trips and a handshake, and a new TCP connection starts slowly:
seconds, in which a wide-area broadcast could have been a tenth of the way. So a stream that
has served one payload to its end is kept, and the next payload is asked for on it.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from echo2swarm.network.base import Network, Stream
from echo2swarm.system.errors import NetworkError
from protocols import chunks
from protocols.chunks import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, DownloadDone
from protocols.codec import encode
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId

GOODBYE_S: Final = 1.0
MAX_KEPT: Final = 48
"""Idle streams; twice the neighbours that a node has at most."""
MAX_LEFT_BYTES: Final = 2 * MAX_REPLY_BYTES
"""Answers to what was asked for before the payload was done; more than that is a nuisance."""


class _CutOffError(Exception):
    """Leaves a stream's context in the way that resets the stream."""


@dataclass(slots=True, kw_only=True, eq=False)
class PooledStream:
    """A stream to one holder, borrowed."""

    stream: Stream
    is_used: bool = False
    """Whether it has served another payload: answers about that one may still come."""
    is_sound: bool = False
    """To be set by the borrower while it would make sense to go on with it."""
    context: AsyncExitStack
    idling: trio.CancelScope = field(default_factory=trio.CancelScope)


class StreamPool:
    """The streams of one participant; they are kept while :meth:`run` runs.

    Args:
        network: ours.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._idle: OrderedDict[tuple[PeerId, bool], PooledStream] = OrderedDict()
        self._nursery: trio.Nursery | None = None

    @property
    def peer(self) -> PeerId:
        """Our own peer id."""
        return self._network.peer

    @property
    def num_idle(self) -> int:
        """How many streams are kept."""
        return len(self._idle)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep streams, until cancelled; then they are broken off."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            while self._idle:
                _, line = self._idle.popitem()
                await _cut(line)

    @asynccontextmanager
    async def to(
        self, peer: PeerId, *, bulk: bool, fresh: bool = False
    ) -> AsyncIterator[PooledStream]:
        """Lend a stream to ``peer``: a kept one, if there is one and ``fresh`` is not wanted.

        Afterwards it is kept if it is sound, and reset if not.

        Raises:
            NetworkError: the peer can't be reached.
        """
        line = None if fresh else self._idle.pop((peer, bulk), None)
        if line is None:
            line = await self._open(peer, bulk=bulk)
        line.idling.cancel()
        try:
            yield line
        finally:
            if line.is_sound and await _say_done(line.stream) and self._nursery is not None:
                line.is_sound, line.is_used = False, True
                await self._keep((peer, bulk), line, self._nursery)
            else:
                await _cut(line)

    async def _open(self, peer: PeerId, *, bulk: bool) -> PooledStream:
        context = AsyncExitStack()
        stream = await context.enter_async_context(
            self._network.open_stream(
                peer, chunks.PROTOCOL_ID, max_frame_bytes=MAX_REPLY_BYTES, bulk=bulk
            )
        )
        return PooledStream(stream=stream, context=context)

    async def _keep(
        self, key: tuple[PeerId, bool], line: PooledStream, nursery: trio.Nursery
    ) -> None:
        before = self._idle.pop(key, None)
        line.idling = trio.CancelScope()
        self._idle[key] = line
        nursery.start_soon(self._drain, key, line, line.idling)
        if before is not None:
            await _cut(before)
        while len(self._idle) > MAX_KEPT:
            _, longest_idle = self._idle.popitem(last=False)
            await _cut(longest_idle)

    async def _drain(
        self, key: tuple[PeerId, bool], line: PooledStream, idling: trio.CancelScope
    ) -> None:
        """Take what was still on its way, so that the holder is rid of it; notice the end."""
        left_bytes = MAX_LEFT_BYTES
        with idling, suppress(NetworkError, RemoteProtocolError):
            while left_bytes > 0:
                left_bytes -= len(await line.stream.receive_view())
        if not idling.cancel_called and self._idle.get(key) is line:
            del self._idle[key]
            await _cut(line)


async def _say_done(stream: Stream) -> bool:
    deadline_s = trio.current_time() + GOODBYE_S
    with suppress(NetworkError), trio.CancelScope(shield=True, deadline=deadline_s):
        await stream.send(encode(DownloadDone(), max_bytes=MAX_REQUEST_BYTES))
        return True
    return False


async def _cut(line: PooledStream) -> None:
    line.idling.cancel()
    with suppress(_CutOffError), trio.CancelScope(shield=True):
        async with line.context:
            raise _CutOffError
