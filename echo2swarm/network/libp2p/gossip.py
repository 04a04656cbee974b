"""GossipSub through py-libp2p, with settings that do not lose messages."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.validators import signature_validator

from echo2swarm.network.admission.gossip_guard import GossipGuard
from echo2swarm.network.base import MAX_GOSSIP_BYTES
from echo2swarm.network.serving import Subscription
from echo2swarm.system.errors import NetworkError
from protocols.errors import LocalProtocolError
from protocols.gossip import Validation
from protocols.ids import PeerId, short

PROTOCOL: Final = TProtocol("/meshsub/1.1.0")
LEAVE_S: Final = 2.0
PUBLISH_S: Final = 10.0
MAX_QUEUED: Final = 12
"""Of the 32 messages that the library queues for a neighbour."""
ROOM_S: Final = 1.0
"""Longest wait for a slow neighbour; the others must not wait for the slowest for ever."""
ROOM_POLL_S: Final = 0.005
MAX_REMEMBERED: Final = 32
"""Messages kept to tell a sender that signs two under one number. The library would keep a
thousand, and each holds 17 kB, whatever its length: the memory of the packet that it came in."""

_log = structlog.get_logger()


class _Newest(dict[bytes, rpc_pb2.Message]):
    """The last few entries that were added."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: bytes, message: rpc_pb2.Message) -> None:
        super().__setitem__(key, message)
        while len(self) > self._max_entries:
            del self[next(iter(self))]


class GuardedPubsub(Pubsub):  # type: ignore[misc]  # untyped library
    """Does nothing with a message before ``admit`` has let it in.

    The library by itself verifies signatures first, writes every message that fails out as text,
    and counts nothing against who brought it.
    """

    def __init__(
        self,
        host: IHost,
        router: GossipSub,
        *,
        admit: Callable[[ID, rpc_pb2.Message], bool],
        is_shut_out: Callable[[ID], bool],
    ) -> None:
        super().__init__(host, router, strict_signing=True)
        self._own_id = host.get_id()
        self._admit = admit
        self._is_shut_out = is_shut_out
        self._incoming: dict[ID, set[INetStream]] = {}

    async def _handle_new_peer(self, peer_id: ID) -> None:
        """Open the stream to a new neighbour, and tell it of every topic that we subscribe to.

        The library lists the topics in its first packet, and counts the neighbour as one only when
        that was written. It announces a topic that is subscribed to meanwhile to all others; this
        neighbour would never bring us a message of it.
        """
        before = frozenset(self.topic_ids)
        await super()._handle_new_peer(peer_id)
        queue = self.peer_queues.get(peer_id)
        if queue is None:
            return
        now = frozenset(self.topic_ids)
        for topic in sorted(before ^ now):
            packet, change = self._build_announce_rpc(topic, subscribe=topic in now)
            self._enqueue_or_retry_announce(peer_id, queue, packet, change)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Deliver and pass on a message, if it is let in."""
        if msg_forwarder == self._own_id or self._admit(msg_forwarder, msg):
            await super().push_msg(msg_forwarder, msg)

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read what a neighbour sends, unless it is shut out."""
        peer = stream.muxed_conn.peer_id
        if self._is_shut_out(peer):
            await stream.reset()
            return
        streams = self._incoming.setdefault(peer, set())
        streams.add(stream)
        try:
            await super().continuously_read_stream(stream)
        finally:
            streams.discard(stream)
            if not streams:
                self._incoming.pop(peer, None)

    def shut_out(self, peer: ID) -> None:
        """Read nothing more of what ``peer`` sends."""
        for stream in self._incoming.get(peer, ()):
            self.manager.run_task(self._reset, stream)

    async def _reset(self, stream: INetStream) -> None:
        with suppress(Exception):  # it may be gone already
            await stream.reset()


class Gossip:
    """What the network port asks of GossipSub."""

    def __init__(self, host: IHost) -> None:
        self._own = PeerId(str(host.get_id()))
        self.router = GossipSub(
            [PROTOCOL],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_interval=1,
            # With few peers it makes the interval 30 to 60 s: no lost message is offered again,
            # no lost neighbour is replaced meanwhile, and every message is kept for minutes.
            adaptive_gossip_enabled=False,
            # By default the eleventh message of a sender within a second is lost.
            max_messages_per_topic_per_second=1000.0,
        )
        self.router.equivocation_detection = _Newest(MAX_REMEMBERED)
        self._guard = GossipGuard()
        self.pubsub = GuardedPubsub(
            host, self.router, admit=self._admit, is_shut_out=self._is_shut_out
        )
        self._topics: dict[str, Subscription] = {}

    @asynccontextmanager
    async def subscribe(
        self, topic: str, subscription: Subscription, nursery: trio.Nursery
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[PeerId, bytes]]]:
        """Join a topic; ``nursery`` runs the task that empties the library's short queue."""
        if topic in self._topics:
            raise LocalProtocolError(f"already subscribed to {topic}")
        self._topics[topic] = subscription
        scope = trio.CancelScope()
        try:
            await nursery.start(self._drain, topic, subscription, scope)
            yield subscription.receive
        finally:
            scope.cancel()
            subscription.close()
            del self._topics[topic]
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S):
                try:
                    await self.pubsub.unsubscribe(topic)
                except Exception as exc:
                    _log.debug("gossip.unsubscribe_failed", topic=topic, error=repr(exc)[:200])

    def _is_shut_out(self, peer: ID) -> bool:
        return self._guard.is_shut_out(PeerId(str(peer)), trio.current_time())

    def _admit(self, forwarder: ID, message: rpc_pb2.Message) -> bool:
        """Return whether a message is to be delivered and passed on; the cheapest checks first."""
        now_s, neighbour = trio.current_time(), PeerId(str(forwarder))
        topics = message.topicIDs
        subscription = self._topics.get(topics[0]) if len(topics) == 1 else None
        if subscription is None or self.pubsub._is_msg_seen(message):
            return False
        if not self._guard.admit(neighbour, now_s):
            return False
        author = PeerId(str(ID(message.from_id)))
        fault = subscription.objection(author, len(message.data))
        if not fault and not signature_validator(message):
            fault = f"not signed by {short(author)}, who is said to have written it"
        if fault:
            self._fault(forwarder, subscription, fault)
            return False
        if author == self._own:
            return False  # It was on its way for longer than it is remembered.
        fate = subscription.judge(author, message.data)
        if fate is Validation.REJECT:
            self._fault(forwarder, subscription, "it is rejected")
        if fate is not Validation.ACCEPT:
            self.pubsub._mark_msg_seen(message)
        return fate is Validation.ACCEPT

    def _fault(self, forwarder: ID, subscription: Subscription, fault: str) -> None:
        neighbour = PeerId(str(forwarder))
        if self._guard.fault(neighbour, trio.current_time()):
            subscription.warn("gossip.shut_out", neighbour, fault)
            self.pubsub.shut_out(forwarder)

    async def _drain(
        self,
        topic: str,
        subscription: Subscription,
        scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        with scope:
            try:
                messages = await self.pubsub.subscribe(topic)
                task_status.started()
                while True:
                    message = await messages.get()
                    author = PeerId(str(ID(message.from_id)))
                    if author != self._own:
                        subscription.deliver(author, message.data)
            except trio.EndOfChannel:
                subscription.close()

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip ``data`` to everybody who subscribed."""
        if len(data) > MAX_GOSSIP_BYTES:
            raise LocalProtocolError(f"gossip of {len(data)} bytes, limit {MAX_GOSSIP_BYTES}")
        try:
            with trio.fail_after(PUBLISH_S):
                await self._wait_for_room()
                await self.pubsub.publish(topic, data)
        except Exception as exc:
            raise NetworkError(f"can't gossip on {topic}: {exc!r}") from exc

    async def _wait_for_room(self) -> None:
        """Wait until no neighbour's queue is half full: what does not fit is lost silently."""
        with trio.move_on_after(ROOM_S):
            while self._is_crowded():  # noqa: ASYNC110 - the library has no event for it
                await trio.sleep(ROOM_POLL_S)

    def _is_crowded(self) -> bool:
        return any(len(queue) > MAX_QUEUED for queue in self.pubsub.peer_queues.values())
