"""Connections to peers: dialled at each address, one for control and one for bulk, watched."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import structlog
import trio
from libp2p.abc import IHost, INetConn, INetStream, INetwork, INotifee
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from echo2swarm.network.addresses import merge_addresses
from echo2swarm.network.admission.dial_policy import target_of
from echo2swarm.network.admission.proven import IsProven
from echo2swarm.network.admission.unread import who_has_to_go
from echo2swarm.network.base import PeerInfo
from echo2swarm.network.libp2p.endpoints import ends_of, open_connections
from echo2swarm.network.libp2p.gate import Gate
from echo2swarm.network.libp2p.holepunch import HolePunching
from echo2swarm.network.libp2p.host import peer_store_addresses
from echo2swarm.network.serving import leaves
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from protocols.ids import PeerId, short

OPEN_S: Final = 10.0
BULK_DIAL_S: Final = 5.0
SHARE_S: Final = 300.0
"""How long bulk shares the one connection before another dial is tried."""
CLOSE_S: Final = 5.0
MAX_KNOWN_PEERS: Final = 4096
MAX_UNPROVEN: Final = 4
"""Addresses of one peer at which it has not proven itself: so many are tried at a time."""
ADDRESS_TTL_S: Final = 3600

_log = structlog.get_logger()


class Connections:
    """Who is connected, and how to get there."""

    def __init__(self, host: IHost, peer: PeerId, gate: Gate) -> None:
        self._host = host
        self._gate = gate
        self._swarm = host.get_network()
        self._peer = peer
        self._known: dict[PeerId, tuple[str, ...]] = {}
        self._undiallable: dict[PeerId, float] = {}
        self._dial_locks: WeakValueDictionary[PeerId, trio.Lock] = WeakValueDictionary()
        self.changes = ChangeEvent()
        """Rung when the set of connected peers has changed."""
        self._seen: frozenset[PeerId] = frozenset()
        self._swarm.register_notifee(_OnChange(self.look))
        self.meetings: HolePunching | None = None
        """How to connect to peers who can't be dialled, if anybody helps."""

    def peers(self) -> frozenset[PeerId]:
        """Return the peers with an open connection."""
        ids = self._host.get_connected_peers()
        return frozenset(PeerId(str(peer)) for peer in ids if self._open(peer))

    def look(self) -> None:
        """Compare who is connected with the last time, and say whether that has changed."""
        before, self._seen = self._seen, self.peers()
        if self._seen != before:
            self.changes.notify()

    async def connect(
        self, info: PeerInfo, *, timeout_s: float = 10.0, told_by: str | None = None
    ) -> None:
        """Connect to a peer, trying each address."""
        if info.peer == self._peer:
            raise NetworkError("a peer does not connect to itself")
        if told_by is None:
            self._gate.policy.trust(info.peer, info.addresses)
        async with self._dial_lock(info.peer):
            if self._open(ID.from_string(info.peer)):
                return
            with self._gate.naming(told_by or info.peer):
                await self._reach(info.peer, info.addresses, timeout_s=timeout_s)

    async def _reach(self, peer: PeerId, addresses: Sequence[str], *, timeout_s: float) -> INetConn:
        """Make a connection: by dialling or, if nobody answers, by a meeting."""
        deadline_s = trio.current_time() + timeout_s
        meetings = self.meetings
        if meetings is None or not meetings.may_meet(peer):
            return await self._dial(peer, addresses, timeout_s=timeout_s)
        try:
            return await self._dial(peer, addresses, timeout_s=timeout_s / 2)
        except NetworkError as exc:
            if connections := self._open(ID.from_string(peer)):
                return connections[0]  # It has reached us meanwhile.
            try:
                return await meetings.meet(peer, timeout_s=deadline_s - trio.current_time())
            except NetworkError as also:
                raise NetworkError(f"{exc}; {also}") from also

    def is_met(self, peer: PeerId) -> bool:
        """Return whether there is one connection to ``peer``, and no dialling makes another."""
        return self.meetings is not None and self.meetings.is_met(peer)

    async def _dial(self, peer: PeerId, addresses: Sequence[str], *, timeout_s: float) -> INetConn:
        """Make a new connection at the first address that answers."""
        failures: list[str] = []
        deadline_s = trio.current_time() + timeout_s
        addresses = self._dialable(peer, addresses, failures)
        for i, where in enumerate(addresses):
            # What is left is shared, so that one silent address can't use up the time of all.
            limit_s = (deadline_s - trio.current_time()) / (len(addresses) - i)
            try:
                with trio.fail_after(max(limit_s, 0)):
                    connection = await self._swarm.dial_addr(Multiaddr(where), ID.from_string(peer))
            except trio.TooSlowError:
                failures.append(f"{where}: timed out")
            except Exception as exc:
                failures.append(f"{where}: {_explain(exc)}")
                is_taken = isinstance(_root_of(exc), PeerIDMismatchesPubkey)
                self._gate.policy.failed(peer, where, is_taken=is_taken)
            else:
                self._gate.policy.reached(peer, where)
                self.learn(PeerInfo(peer=peer, addresses=(where,)))
                return connection
        raise NetworkError(f"can't reach peer {peer}: {'; '.join(failures) or 'no address known'}")

    def _dialable(
        self, peer: PeerId, addresses: Sequence[str], failures: list[str]
    ) -> tuple[str, ...]:
        """Return the addresses that may be dialled at all, those that were good before first."""
        policy = self._gate.policy
        good: list[str] = []
        others: list[str] = []
        for where in dict.fromkeys(addresses):
            if policy.is_good(peer, where):
                good.append(where)
            elif why := policy.objection(where):
                failures.append(f"{where}: not dialled: {why}")
            else:
                others.append(where)
        return (*good, *others[:MAX_UNPROVEN])

    def _dial_lock(self, peer: PeerId) -> trio.Lock:
        return self._dial_locks.setdefault(peer, trio.Lock())

    def learn(self, info: PeerInfo, *, is_hearsay: bool = False) -> None:
        """Note where a peer was found, or is said to be, for the next time."""
        before = self._known.pop(info.peer, ())
        addresses = (
            merge_addresses(before, info.addresses)
            if is_hearsay
            else merge_addresses(info.addresses, before)
        )
        self._known[info.peer] = addresses
        if len(self._known) > MAX_KNOWN_PEERS:
            del self._known[next(iter(self._known))]
        self._host.get_peerstore().add_addrs(
            ID.from_string(info.peer), [Multiaddr(text) for text in addresses], ADDRESS_TTL_S
        )

    def known_addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Return where ``peer`` may be, first where it answered last."""
        return merge_addresses(self._known.get(peer, ()), peer_store_addresses(self._host, peer))

    def good_addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Return where ``peer`` has proven its key, or the run's owner says that it is."""
        policy = self._gate.policy
        return tuple(where for where in self.known_addresses(peer) if policy.is_good(peer, where))

    def host_of(self, peer: PeerId) -> str | None:
        """Return the IP address from which ``peer`` is connected to us, as we see it."""
        for connection in open_connections(self._host, peer):
            with suppress(OSError):  # it has just been closed
                return ends_of(connection.muxed_conn)[1].host
        return None

    def note_reached(self) -> None:
        """Tell the policy where peers are whom the library connected to."""
        for connection in self._swarm.get_connections():
            muxed = connection.muxed_conn
            if muxed.is_initiator and not connection.is_closed:
                with suppress(OSError):
                    peer = PeerId(str(muxed.peer_id))
                    where = str(ends_of(muxed)[1])
                    target = target_of(where)
                    if target is not None and not self._gate.policy.is_proven(peer, target):
                        self._gate.policy.reached(peer, where)

    def _open(self, peer: ID) -> list[INetConn]:
        """Return the live connections to ``peer``, the oldest first."""
        return [
            connection
            for connection in self._swarm.get_connections(peer)
            if not connection.is_closed and connection.muxed_conn.is_established
        ]

    async def get(self, peer: PeerId, *, bulk: bool) -> INetConn:
        """Return the connection for control messages, or the one for bulk.

        Both sides count the oldest connection as the one for control; bulk goes over
        the newest other one. So they agree without a word about it.
        """
        known = self.known_addresses(peer)
        async with self._dial_lock(peer):
            connections = self._open(ID.from_string(peer))
            if not connections:
                with self._gate.naming(peer):
                    connections = [await self._reach(peer, known, timeout_s=OPEN_S)]
            if bulk and len(connections) == 1 and self._may_dial_for_bulk(peer):
                try:
                    with self._gate.naming(peer):
                        connections.append(await self._dial(peer, known, timeout_s=BULK_DIAL_S))
                except NetworkError as exc:
                    # It dialled us from behind a router: better one connection than none.
                    self._undiallable[peer] = trio.current_time() + SHARE_S
                    _log.debug("bulk.shares_connection", peer=short(peer), error=str(exc))
        return connections[-1] if bulk else connections[0]

    def _may_dial_for_bulk(self, peer: PeerId) -> bool:
        if self.is_met(peer):
            return False
        now_s = trio.current_time()
        self._undiallable = {
            p: until_s for p, until_s in self._undiallable.items() if until_s > now_s
        }
        return peer not in self._undiallable

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to ``peer``."""
        for connection in self._swarm.get_connections(ID.from_string(peer)):
            await self._close(connection)

    async def _close(self, connection: INetConn) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            try:
                await connection.close()
            except Exception as exc:
                _log.debug("connection.close_failed", error=repr(exc)[:200])

    def cut_floods(self, *, is_proven: IsProven) -> None:
        """Close the connections of peers who send more than anybody reads, the largest first."""
        held_bytes: Counter[PeerId] = Counter()
        for connection in self._swarm.get_connections():
            muxed = connection.muxed_conn
            held_bytes[PeerId(str(muxed.peer_id))] += muxed.num_unread_bytes
        for peer in who_has_to_go(held_bytes, is_proven=is_proven):
            _log.warning("peer.flooding", peer=short(peer), unread_bytes=held_bytes[peer])
            for connection in self._swarm.get_connections(ID.from_string(peer)):
                connection.muxed_conn.cut()


class _OnChange(INotifee):  # type: ignore[misc]  # untyped library
    """Calls ``look`` whenever the library opens or closes a connection."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        self._look()

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._look()

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        pass

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        pass

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        pass

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        pass


def _root_of(exc: BaseException) -> BaseException:
    root = exc
    while True:
        if isinstance(root, BaseExceptionGroup):
            root = leaves(root)[0]
        elif (inner := root.__cause__ or root.__context__) is not None:
            root = inner
        else:
            return root


def _explain(exc: BaseException) -> str:
    """Return in a few words why a dial failed."""
    root = _root_of(exc)
    if isinstance(root, PeerIDMismatchesPubkey):
        return "another peer answers there (is the ticket of an earlier run?)"
    if isinstance(root, OSError):
        # The text of a system error, without where: that stands before it.
        number = root.errno or 0
        return os.strerror(number) if number > 0 else root.strerror or str(root)
    return str(root).partition("\n")[0][:160] or type(root).__name__
