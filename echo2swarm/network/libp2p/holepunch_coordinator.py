"""Bringing two peers together that are both connected to us; ``docs/specs/holepunch.md``."""

from collections import OrderedDict
from typing import Final

import structlog
import trio
from libp2p.abc import IHost

from echo2swarm.network.base import ServeLimits, Stream
from echo2swarm.network.libp2p.endpoints import (
    Negotiate,
    connection_to,
    ends_of,
    muxed_of,
    stream_on,
)
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.throttle import Throttle
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.holepunch import (
    INVITE_PROTOCOL_ID,
    MAX_BYTES,
    InviteReply,
    PunchDeclined,
    PunchFault,
    PunchGo,
    PunchInvite,
    PunchRequest,
    TcpEndpoint,
    places_of,
)
from protocols.ids import PeerId, public_key_of, short

ANSWER_S: Final = 4.0
"""For a peer to answer an invitation."""
LIMITS: Final = ServeLimits(
    max_frame_bytes=MAX_BYTES, max_streams=64, max_streams_per_peer=8, timeout_s=10.0
)
BURST: Final = 24
"""A node that joins asks for all its neighbours."""
REFILL_PER_S: Final = 0.2
MAX_CALLERS: Final = 4096

_log = structlog.get_logger()


class _DeclinedError(Exception):
    def __init__(self, fault: PunchFault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


class HolePunchCoordinator:
    """Invites whom a caller asks for, and tells both when and where to connect.

    Args:
        host: our host.
        negotiate: opens streams.
    """

    def __init__(self, host: IHost, *, negotiate: Negotiate) -> None:
        self._host = host
        self._negotiate = negotiate
        self._throttles: OrderedDict[PeerId, Throttle] = OrderedDict()

    async def bring_together(self, stream: Stream) -> None:
        """Invite whom the caller asks for, and send both on their way."""
        ask: PunchRequest = decode(await stream.receive(), PunchRequest, max_bytes=MAX_BYTES)
        caller, callee = stream.peer, PeerId(ask.peer_id)
        public_key_of(callee)
        if callee == caller:
            raise MalformedMessageError("wants to meet itself")
        _, seen = ends_of(muxed_of(stream))
        try:
            await self._invite(callee, stream, places_of(seen, ask.local_port))
        except _DeclinedError as exc:
            _log.debug("meeting.declined", caller=short(caller), error=str(exc))
            await stream.send(encode(PunchDeclined(exc.fault), max_bytes=MAX_BYTES))

    async def _invite(
        self, callee: PeerId, caller: Stream, caller_places: tuple[TcpEndpoint, ...]
    ) -> None:
        if not self._may_ask(caller.peer):
            raise _DeclinedError(PunchFault.BUSY, "asks too often")
        connection = connection_to(self._host, callee, is_dialled=False)
        if connection is None:
            raise _DeclinedError(PunchFault.NOT_HERE, f"{short(callee)} is not connected")
        try:
            with trio.fail_after(ANSWER_S):
                async with stream_on(
                    connection, callee, INVITE_PROTOCOL_ID, self._negotiate
                ) as invited:
                    await invited.send(encode(PunchInvite(caller.peer), max_bytes=MAX_BYTES))
                    reply: InviteReply = decode(
                        await invited.receive(), InviteReply, max_bytes=MAX_BYTES
                    )
                    if isinstance(reply, PunchDeclined):
                        raise _DeclinedError(reply.fault, f"{short(callee)} declines")
                    _, seen = ends_of(connection.muxed_conn)
                    callee_places = places_of(seen, reply.local_port)
                    if not (caller_places and callee_places):
                        raise _DeclinedError(PunchFault.UNABLE, "no usable place")
                    # Now every millisecond between the two makes it less likely.
                    await invited.send(_go(caller_places))
                    await caller.send(_go(callee_places))
        except (trio.TooSlowError, NetworkError, RemoteProtocolError) as exc:
            raise _DeclinedError(PunchFault.UNABLE, f"{short(callee)}: {exc!r}") from exc

    def _may_ask(self, caller: PeerId) -> bool:
        throttle = self._throttles.pop(caller, None) or Throttle(
            burst=BURST, refill_per_s=REFILL_PER_S
        )
        self._throttles[caller] = throttle
        if len(self._throttles) > MAX_CALLERS:
            self._throttles.popitem(last=False)
        return throttle.admit(trio.current_time()) is not None


def _go(places: tuple[TcpEndpoint, ...]) -> bytes:
    return encode(PunchGo(tuple(map(str, places))), max_bytes=MAX_BYTES)
