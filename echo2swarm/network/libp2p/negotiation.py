"""Incoming streams until it is known what they are for: few at once, and not for long."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio
from libp2p.abc import IHost, INetStream
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from echo2swarm.network.admission.proven import IsProven
from echo2swarm.network.libp2p.turns import Turns
from echo2swarm.system.throttle import Throttle
from protocols.ids import PeerId, short

NEGOTIATE_S: Final = 10
MAX_UNDECIDED_PER_PEER: Final = 16
"""Streams that have not said their protocol; an honest peer's say it within a round trip."""
MAX_UNDECIDED: Final = 512
MAX_STREAMS_PER_PEER: Final = 256
"""Of all protocols together; each has limits of its own besides, except the library's."""
REFUSALS_BURST: Final = 12
REFUSALS_PER_S: Final = 2.0
"""Who goes on opening streams that are refused loses its connections."""
STRANGERS_PER_S: Final = 60.0
STRANGERS_BURST: Final = 300
"""Streams of all who are not proven together; so many in a row wait for nothing: a crowd of nodes
that join at once."""

_log = structlog.get_logger()


class _Peer:
    """What one peer has open."""

    def __init__(self) -> None:
        self.undecided: dict[trio.CancelScope, INetStream] = {}
        self.num_streams = 0
        self.refusals = Throttle(burst=REFUSALS_BURST, refill_per_s=REFUSALS_PER_S)

    def waiting(self) -> list[trio.CancelScope]:
        """Return the scopes of what is undecided, the oldest first; not of what was given up."""
        return [s for s, stream in self.undecided.items() if not stream.muxed_stream.closed]


class Negotiation:
    """Agrees on a protocol for each incoming stream, and runs its handler.

    Args:
        host: knows the handlers.
        is_proven: who waits for nothing; all others do, by turns, while they open many.
    """

    def __init__(self, host: IHost, is_proven: IsProven) -> None:
        self.turns = Turns(per_s=STRANGERS_PER_S, burst=STRANGERS_BURST)
        self._host = host
        self._is_proven = is_proven
        self._peers: dict[PeerId, _Peer] = {}

    async def serve(self, stream: INetStream) -> None:
        """Serve one incoming stream to its end."""
        peer = PeerId(str(stream.muxed_conn.peer_id))
        open_of = self._peers.setdefault(peer, _Peer())
        open_of.num_streams += 1
        try:
            handler = await self._agreed(stream, peer, open_of)
            if handler is None:
                await stream.reset()
            else:
                await handler(stream)
        finally:
            open_of.num_streams -= 1
            if not open_of.num_streams:
                # The last one gone takes the record of refusals along: a flood is many at once.
                self._peers.pop(peer, None)

    async def _agreed(
        self, stream: INetStream, peer: PeerId, open_of: _Peer
    ) -> Callable[[INetStream], Awaitable[None]] | None:
        """Return who serves the stream; None if nobody does."""
        if open_of.num_streams > MAX_STREAMS_PER_PEER:
            self._refuse(stream, peer, open_of)
            return None
        waiting = open_of.waiting()
        if len(waiting) >= MAX_UNDECIDED_PER_PEER:
            # The oldest: who was slow once, or gave up, is served when it tries again.
            self._end(open_of, waiting[0])
            self._refuse(stream, peer, open_of)
        self._make_room()
        with trio.move_on_after(NEGOTIATE_S) as scope:
            open_of.undecided[scope] = stream
            try:
                if not self._is_proven(peer):
                    await self.turns.wait(peer)
                protocol, handler = await self._host.get_mux().negotiate(
                    MultiselectCommunicator(stream), NEGOTIATE_S
                )
            finally:
                open_of.undecided.pop(scope, None)
            if protocol is None or handler is None:
                return None
            stream.set_protocol(protocol)
            agreed: Callable[[INetStream], Awaitable[None]] = handler
            return agreed
        return None

    def _make_room(self) -> None:
        """End the oldest undecided stream of whoever has most, if there are too many in all."""
        if sum(len(each.undecided) for each in self._peers.values()) < MAX_UNDECIDED:
            return
        peer, most = max(self._peers.items(), key=lambda each: len(each[1].undecided))
        scope, stream = next(iter(most.undecided.items()))
        self._end(most, scope)
        self._refuse(stream, peer, most)

    @staticmethod
    def _end(open_of: _Peer, scope: trio.CancelScope) -> None:
        del open_of.undecided[scope]
        scope.cancel()

    def _refuse(self, stream: INetStream, peer: PeerId, open_of: _Peer) -> None:
        if open_of.refusals.admit(trio.current_time()) is None:
            _log.warning("peer.flooding", peer=short(peer), error="opens stream upon stream")
            stream.muxed_conn.cut()
