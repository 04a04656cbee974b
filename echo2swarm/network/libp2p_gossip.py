"""GossipSub through py-libp2p, with settings that do not lose messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio
from libp2p.abc import IHost
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub

from echo2swarm.errors import NetworkError
from echo2swarm.network.base import Validator
from echo2swarm.network.serving import MAX_GOSSIP_BYTES, Subscription
from protocols.errors import LocalProtocolError
from protocols.gossip import Fate
from protocols.ids import PeerId

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
        self.pubsub = Pubsub(host, self.router, strict_signing=True)
        self._topics: set[str] = set()

    @asynccontextmanager
    async def subscribe(
        self, topic: str, validator: Validator, nursery: trio.Nursery
    ) -> AsyncIterator[trio.MemoryReceiveChannel[tuple[PeerId, bytes]]]:
        """Join a topic; ``nursery`` runs the task that empties the library's short queue."""
        if topic in self._topics:
            raise LocalProtocolError(f"already subscribed to {topic}")
        subscription = Subscription(topic, validator)

        def judge(_forwarder: ID, message: rpc_pb2.Message) -> bool:
            author = PeerId(str(ID(message.from_id)))
            # The library also asks about what we publish ourselves.
            return author == self._own or subscription.judge(author, message.data) is Fate.ACCEPT

        self._topics.add(topic)
        scope = trio.CancelScope()
        try:
            self.pubsub.set_topic_validator(topic, judge, False)
            await nursery.start(self._drain, topic, subscription, scope)
            yield subscription.receive
        finally:
            scope.cancel()
            subscription.close()
            self._topics.discard(topic)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_S):
                try:
                    await self.pubsub.unsubscribe(topic)
                    self.pubsub.remove_topic_validator(topic)
                except Exception as exc:
                    _log.debug("gossip.unsubscribe_failed", topic=topic, error=repr(exc)[:200])

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
