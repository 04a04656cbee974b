"""How a TCP connection becomes one of libp2p's, if there is a seat for it."""

from collections.abc import Callable
from typing import Final

import structlog
import trio
from libp2p.abc import IRawConnection
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.exceptions import SecurityUpgradeFailure
from libp2p.transport.upgrader import TransportUpgrader

from echo2swarm.network.admission.connection_seats import ConnectionSeat, ConnectionSeats, Why
from echo2swarm.network.libp2p.noise import FrameSession, SafeNoise
from echo2swarm.network.libp2p.socket import OwnedStream
from echo2swarm.network.libp2p.turns import Turns
from echo2swarm.network.libp2p.yamux import BulkMuxer, BulkYamux
from echo2swarm.system.throttle import Throttle
from protocols.ids import PeerId, short

LOG_BURST: Final = 5
LOGS_PER_S: Final = 1 / 60
HANDSHAKES_PER_S: Final = 25.0
HANDSHAKES_BURST: Final = 150
"""Of strangers, for they are that before it: each takes milliseconds of the processor. So many in a
row wait for nothing: a crowd of nodes that join at once."""

_log = structlog.get_logger()


class HandshakeTurns:
    """Lets handshakes begin at a pace, by turns among the addresses that they come from."""

    def __init__(self) -> None:
        self._turns = Turns(per_s=HANDSHAKES_PER_S, burst=HANDSHAKES_BURST)
        self.run = self._turns.run

    async def wait(self, conn: IRawConnection) -> None:
        """Return when it is a connection's turn, or it was closed meanwhile."""
        if self._turns.take_free():
            return
        stream: OwnedStream = conn.stream

        async def take() -> None:
            await self._turns.wait(ConnectionSeat(_address_of(stream), is_dialled=False).host)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await stream.closed.wait()
            nursery.cancel_scope.cancel()
        if stream.closed.is_set():
            raise SecurityUpgradeFailure("made room for another connection")


class SeatedUpgrader(TransportUpgrader):  # type: ignore[misc]  # untyped library
    """The library's handshakes, for connections that have a seat.

    A connection whose handshake fails or is cancelled is closed. So is one that has to make room
    for another, which its owner learns as from any connection that breaks.

    Args:
        security: what to encrypt with.
        seats: which connections there may be.
        on_received: told how many bytes have arrived on any connection.
    """

    def __init__(
        self,
        security: dict[str, SafeNoise],
        seats: ConnectionSeats,
        on_received: Callable[[int], None],
    ) -> None:
        super().__init__(security, {TProtocol(YAMUX): BulkYamux})
        self.muxer_multistream = BulkMuxer(on_received)
        self._seats = seats
        self._streams: dict[ConnectionSeat, OwnedStream] = {}
        self._throttle = Throttle(burst=LOG_BURST, refill_per_s=LOGS_PER_S)

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> FrameSession:
        """Agree on encryption, and learn who is at the other end."""
        stream: OwnedStream = raw_conn.stream
        try:
            seat = self._take(stream, is_dialled=is_initiator)
            secured: FrameSession = await super().upgrade_security(raw_conn, is_initiator, peer_id)
            peer = PeerId(str(secured.get_remote_peer()))
            self._make_room(self._seats.identify(seat, peer), for_host=seat.host)
            if stream.closed.is_set():
                raise SecurityUpgradeFailure("made room for another connection")
        except BaseException:
            stream.cut()
            raise
        return secured

    def _take(self, stream: OwnedStream, *, is_dialled: bool) -> ConnectionSeat:
        seat = ConnectionSeat(_address_of(stream), is_dialled)
        if not self._seats.may_try(seat, trio.current_time()):
            raise SecurityUpgradeFailure("too many from there a moment ago")
        self._streams[seat] = stream
        stream.on_flood = lambda: self._seats.flooded(seat, trio.current_time())
        stream.on_closed = lambda: self._leave(seat)
        if self._make_room(self._seats.take(seat), for_host=seat.host) is seat:
            raise SecurityUpgradeFailure("all connections are taken")
        return seat

    def _leave(self, seat: ConnectionSeat) -> None:
        self._streams.pop(seat, None)
        self._seats.leave(seat)

    def _make_room(self, victim: ConnectionSeat | None, *, for_host: str) -> ConnectionSeat | None:
        """Close the connection that has to go, if any; returns it."""
        if victim is not None:
            self._tell(victim)
            if victim.why_removed is Why.FULL and victim.host != for_host:
                # Coming back at once, it would only take another's place.
                self._seats.flooded(victim, trio.current_time())
            if (stream := self._streams.get(victim)) is not None:
                stream.cut()
        return victim

    def _tell(self, victim: ConnectionSeat) -> None:
        num_held_back = self._throttle.admit(trio.current_time())
        if num_held_back is None:
            return
        _log.warning(
            "connection.refused",
            address=victim.address,
            peer=None if victim.peer is None else short(victim.peer),
            error=str(victim.why_removed),
            num_not_shown=num_held_back,
        )


def _address_of(stream: OwnedStream) -> str:
    try:
        address: str = stream.stream.socket.getpeername()[0]
    except OSError as exc:
        raise SecurityUpgradeFailure("closed by the other end") from exc
    return address
