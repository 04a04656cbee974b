"""What both adapters do around a handler and a subscriber: limits, guards, bounded queues."""

from collections.abc import Collection

import structlog
import trio

from echo2swarm.network.admission.proven import IsProven
from echo2swarm.network.admission.stream_seats import Seat, Seats
from echo2swarm.network.base import (
    MAX_GOSSIP_BYTES,
    Handler,
    IncomingStream,
    ServeLimits,
    Validator,
)
from echo2swarm.network.served_stream import ServedStream
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.throttle import Rates, Throttle
from protocols.errors import RemoteProtocolError
from protocols.gossip import Validation
from protocols.ids import PeerId, short

GOSSIP_QUEUE_MESSAGES = 256
"""A reader that is this many messages behind loses the oldest."""

_log = structlog.get_logger()


def leaves(exc: BaseException) -> list[BaseException]:
    """Return the exceptions that ``exc`` stands for: itself, or what a nursery gathered in it."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for inner in exc.exceptions for leaf in leaves(inner)]
    return [exc]


def nobody(_peer: PeerId) -> bool:
    """Return that a peer is not known to have done work here."""
    return False


class Service:
    """One served protocol: counts its streams, and runs its handler so that nothing escapes."""

    def __init__(
        self,
        protocol: str,
        handler: Handler,
        limits: ServeLimits,
        *,
        is_proven: IsProven = nobody,
    ) -> None:
        self.limits = limits
        self._protocol = protocol
        self._handler = handler
        self._seats = Seats(
            max_seats=limits.max_streams,
            max_per_peer=limits.max_streams_per_peer,
            is_proven=is_proven,
        )
        self._rates = Rates(limits.max_per_s)
        self._throttle = Throttle()

    async def run(self, stream: IncomingStream) -> bool:
        """Serve one incoming stream; returns whether to close it (True) or to reset it."""
        peer = stream.peer
        if not self._rates.admit(peer, trio.current_time()):
            self._warn("stream.refused", peer, f"more than {self.limits.max_per_s:g} per second")
            return False
        scope = trio.CancelScope(deadline=trio.current_time() + self.limits.timeout_s)
        seat = self._seats.take(peer, scope.cancel)
        if seat is None:
            self._warn("stream.refused", peer, "too many streams at once")
            return False
        try:
            served = ServedStream(stream, self._seats, seat, scope, self.limits.timeout_s)
            return await self._guarded(served, seat, scope)
        finally:
            self._seats.leave(seat)

    async def _guarded(self, stream: ServedStream, seat: Seat, scope: trio.CancelScope) -> bool:
        with scope:
            try:
                await self._handler(stream)
            except Exception as exc:
                self._report(stream.peer, exc)
                return False
            return True
        if scope.cancelled_caught:
            if seat.is_evicted:
                self._warn("stream.evicted", stream.peer, "it held most, and others need the room")
            else:
                fault = stream.fault or f"open for {self.limits.timeout_s:g} s"
                self._warn("stream.timed_out", stream.peer, fault)
        return False

    def _report(self, peer: PeerId, exc: Exception) -> None:
        """Log what ended a handler, by whose fault it was. It costs the stream, not the process."""
        faults = leaves(exc)
        remote = [fault for fault in faults if isinstance(fault, RemoteProtocolError)]
        if not all(isinstance(fault, NetworkError | RemoteProtocolError) for fault in faults):
            _log.error("handler.failed", protocol=self._protocol, peer=short(peer), exc_info=exc)
        elif remote:
            self._warn("stream.rejected", peer, str(remote[0]), reason=remote[0].reason.value)
        else:
            # Peers come and go: that is no news, and no fault of theirs.
            _log.debug("stream.broken", protocol=self._protocol, peer=short(peer), error=str(exc))

    def _warn(self, event: str, peer: PeerId, error: str, **fields: str | int) -> None:
        num_held_back = self._throttle.admit(trio.current_time())
        if num_held_back is None:
            return
        if num_held_back:
            fields["num_not_shown"] = num_held_back
        _log.warning(event, protocol=self._protocol, peer=short(peer), error=error, **fields)


class Subscription:
    """A bounded queue of gossip messages that forgets the oldest when its reader lags."""

    def __init__(
        self,
        topic: str,
        validator: Validator,
        *,
        max_bytes: int = MAX_GOSSIP_BYTES,
        authors: Collection[PeerId] | None = None,
    ) -> None:
        self._topic = topic
        self._validator = validator
        self._max_bytes = max_bytes
        self._authors = authors
        self._throttle = Throttle()
        self._is_lagging = False
        self._send, self.receive = trio.open_memory_channel[tuple[PeerId, bytes]](
            GOSSIP_QUEUE_MESSAGES
        )

    def objection(self, author: PeerId, num_bytes: int) -> str:
        """Return why a message need not be looked at any closer; empty if it must be."""
        if num_bytes > self._max_bytes:
            return f"{num_bytes} bytes, limit {self._max_bytes}"
        if self._authors is not None and author not in self._authors:
            return f"by {short(author)}, who has nothing to say here"
        return ""

    def judge(self, author: PeerId, data: bytes) -> Validation:
        """Ask the validator; one that raises rejects."""
        try:
            return self._validator(author, data)
        except RemoteProtocolError as exc:
            self.warn("gossip.rejected", author, str(exc), reason=exc.reason.value)
        except Exception:
            _log.exception("validator.failed", topic=self._topic, peer=short(author))
        return Validation.REJECT

    def warn(self, event: str, peer: PeerId, error: str, **fields: str) -> None:
        """Log what a peer did wrong, unless much of that was logged lately."""
        num_held_back = self._throttle.admit(trio.current_time())
        if num_held_back is not None:
            _log.warning(
                event,
                topic=self._topic,
                peer=short(peer),
                error=error,
                num_not_shown=num_held_back,
                **fields,
            )

    def deliver(self, author: PeerId, data: bytes) -> None:
        """Queue an accepted message."""
        try:
            try:
                self._send.send_nowait((author, data))
                self._is_lagging = False
            except trio.WouldBlock:
                self.receive.receive_nowait()
                self._send.send_nowait((author, data))
                if not self._is_lagging:
                    self._is_lagging = True
                    _log.warning("gossip.dropped", topic=self._topic, error="reader lags behind")
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return  # The reader has closed its end and wants no more.

    def close(self) -> None:
        """End the reader's iteration after what is queued."""
        self._send.close()
