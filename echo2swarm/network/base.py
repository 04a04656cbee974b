"""The port through which everything above talks to other participants.

Two adapters pass the same contract tests: :mod:`echo2swarm.network.libp2p.network` and
:mod:`tests.fakes.network.memory`. Rules that callers may rely on:

- every method may be cancelled at any checkpoint without harm to other streams: a
  cancelled ``receive`` loses nothing, a cancelled ``send`` costs its own stream;
- whatever goes wrong with a peer surfaces as :class:`NetworkError` or as
  :class:`~protocols.errors.RemoteProtocolError`, nothing else;
- a handler's exception ends its stream, never the process;
- when the network closes, no task, port or file of it is left.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import trio

from echo2swarm.network.admission.proven import IsProven
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from protocols.gossip import Validation
from protocols.ids import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """A peer and the addresses under which it may answer."""

    peer: PeerId
    addresses: tuple[str, ...]
    """Multiaddresses without the ``/p2p/`` part."""


Data = bytes | memoryview
"""Bytes to be sent. A view must be of single bytes, and must not change meanwhile."""


MAX_GOSSIP_BYTES: Final = 1_000_000
"""GossipSub silently loses messages from 1 MiB on, its own envelope included."""
FIRST_FRAME_S: Final = 5.0
"""The first frame of a stream must be here so long after its opening, and more the longer it is."""
MIN_BYTES_PER_S: Final = 8192
"""So fast it must come, on average."""
SLOW_LINE_BYTES_PER_S: Final = 2 * MIN_BYTES_PER_S
"""What the slowest uplinks that are of use carry."""
STALL_S: Final = 15.0
"""And no pause in it may be longer."""


def first_frame_s(num_bytes: int) -> float:
    """Return how long a first frame may be on its way, of which ``num_bytes`` have arrived."""
    return FIRST_FRAME_S + num_bytes / MIN_BYTES_PER_S


class Stream(Protocol):
    """A duplex stream of frames to one authenticated peer."""

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven by its key."""
        ...

    async def send(self, *parts: Data) -> None:
        """Send one frame, which is ``parts`` one after the other.

        Safe to call from several tasks; frames never interleave.

        Raises:
            NetworkError: the stream or the connection broke.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next frame.

        Raises:
            NetworkError: the stream ended or broke. An end in the middle of a frame is
                never taken for a whole one.
            RemoteProtocolError: a frame over the protocol's limit was announced.
        """
        ...

    async def receive_view(self) -> memoryview:
        """Return the next frame as :meth:`receive` does, where that can be done without a copy.

        Nobody else knows the buffer that is viewed.
        """
        ...


class IncomingStream(Stream, Protocol):
    """A stream that a peer opened, as adapters hand it to what serves it."""

    @property
    def num_arrived_bytes(self) -> int:
        """How much is here of the frame that is being received."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
"""Serves one incoming stream; the stream is closed when it returns, reset when it raises."""

Validator = Callable[[PeerId, bytes], Validation]
"""Asked about every gossip message (author, data) before it is delivered or forwarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """What one protocol's handler allows."""

    max_frame_bytes: int
    max_streams: int = 256
    """At once, over all peers: so many at work, and so many whose request is on its way."""
    max_streams_per_peer: int = 8
    """At once, of either kind."""
    timeout_s: float = 60.0
    """A stream is reset so long after its first frame has arrived, which has a deadline of its
    own; ``math.inf`` if the handler has deadlines itself."""
    max_per_s: float = 100.0
    """Streams that one peer opens, on average; 30 s' worth may come at once."""


class Ends(NamedTuple):
    """Where a connection begins and ends, as one of the two sees it: multiaddresses."""

    own: str
    other: str
    """Of a peer behind a router, this is the router."""


class Network(Protocol):
    """A running participant of the peer-to-peer network."""

    @property
    def peer(self) -> PeerId:
        """Our own peer id."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Return where we can be dialled: multiaddresses with ``/p2p/PEER`` at the end."""
        ...

    def connected_peers(self) -> frozenset[PeerId]:
        """Return the peers with an open connection."""
        ...

    @property
    def connection_changes(self) -> ChangeEvent:
        """Rung whenever :meth:`connected_peers` has changed, by either side or a failure."""
        ...

    def ends(self, peer: PeerId) -> Ends | None:
        """Return the ends of a connection to ``peer``; None if there is none."""
        ...

    async def connect(
        self, info: PeerInfo, *, timeout_s: float = 10.0, told_by: str | None = None
    ) -> None:
        """Connect to a peer, trying each address; does nothing if connected.

        Args:
            info: whom, and where.
            timeout_s: for all addresses together.
            told_by: who named these addresses, if that was a peer: then only some kinds of
                address are dialled (:mod:`~echo2swarm.network.admission.dial_policy`), and only so
                many of one who told. None: the run's owner or the person at this machine did, by a
                ticket or a configuration; that is always followed.

        Raises:
            NetworkError: no address answered; the message names the peer and each address.
        """
        ...

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to ``peer``."""
        ...

    def serve(self, protocol: str, handler: Handler, limits: ServeLimits) -> None:
        """From now on, answer incoming streams of ``protocol`` with ``handler``."""
        ...

    def protect(self, is_proven: IsProven) -> None:
        """From now on, keep a share of what is limited for the peers that ``is_proven`` names.

        Until then, and whenever there is room for all, everybody counts alike. Of too many
        connections, those of others are closed first, and of them those of whichever address and
        peer have the most; a part is left for newcomers, however many are proven.
        """
        ...

    def open_stream(
        self, peer: PeerId, protocol: str, *, max_frame_bytes: int, bulk: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to a connected or known peer.

        It is closed on leaving the context, reset if that is by an exception.
        With ``bulk`` it goes over a connection of its own, so that control messages do not
        queue behind it.

        Raises:
            NetworkError: the peer can't be reached or does not speak ``protocol``.
        """
        ...

    def subscribe(
        self,
        topic: str,
        validator: Validator,
        *,
        max_bytes: int = MAX_GOSSIP_BYTES,
        authors: Collection[PeerId] | None = None,
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[tuple[PeerId, bytes]]]:
        """Join a gossip topic; the channel yields what the validator accepted.

        A message over ``max_bytes``, or of nobody in ``authors`` where they are given, is refused
        before anything else is done with it. Who keeps bringing what is refused, the validator's
        ``REJECT`` included, is not listened to for a while.

        What we publish ourselves is neither judged nor delivered here.
        The channel is bounded: a reader that lags behind loses the oldest messages.
        """
        ...

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip ``data`` to everybody who subscribed to ``topic``.

        Raises:
            LocalProtocolError: it is longer than a million bytes.
        """
        ...

    async def provide(self, key: bytes) -> None:
        """Tell the DHT that we belong to ``key`` (32 bytes); to be repeated now and then."""
        ...

    async def find_providers(self, key: bytes) -> Sequence[PeerInfo]:
        """Ask the DHT who belongs to ``key``; empty if nobody is found. Never includes us."""
        ...

    async def find_peer(self, peer: PeerId) -> PeerInfo | None:
        """Ask the DHT for the addresses of ``peer``."""
        ...

    async def put_record(self, key: str, value: bytes) -> None:
        """Store a sealed advert in the DHT under :func:`protocols.advert.dht_key_of`.

        Raises:
            LocalProtocolError: it is not an advert for ``key``, signed by its peer.
        """
        ...

    async def get_record(self, key: str) -> bytes | None:
        """Return the newest sealed advert the DHT has under ``key``; asks others, not a cache."""
        ...


async def call(
    network: Network,
    peer: PeerId,
    protocol: str,
    request: bytes,
    *,
    max_reply_bytes: int,
    timeout_s: float,
) -> bytes:
    """Send one request frame on a stream of its own and return the one reply frame.

    A long request has more time than ``timeout_s``: what a slow line needs to carry it.

    Raises:
        NetworkError: not reachable, broken, or silent for ``timeout_s``.
        RemoteProtocolError: the reply is over its limit.
    """
    timeout_s += len(request) / SLOW_LINE_BYTES_PER_S
    try:
        with trio.fail_after(timeout_s):
            async with network.open_stream(
                peer, protocol, max_frame_bytes=max_reply_bytes
            ) as stream:
                await stream.send(request)
                return await stream.receive()
    except trio.TooSlowError:
        raise NetworkError(f"{peer} did not answer {protocol} within {timeout_s:.3g} s") from None
