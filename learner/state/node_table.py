"""Who takes part, as the learner knows it, without I/O: heartbeats in, measurements out.

A node is its peer id: when it comes back as a new process, it is the same node. What it
says of itself is shown; what is decided by is measured.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from echo2swarm.scheduling.selection.speed import Presence, Speed
from echo2swarm.system.rates import WindowSum
from learner.ledger.resume import NodeTotals
from learner.state.link_table import LinkStatus
from learner.state.node import Node, NodeChange
from learner.state.node_admission import NoRoomError, idle, who_gives_way
from learner.trainer.messages import SampledBy
from protocols.advert import NodeAdvert
from protocols.heartbeat import Directive, Heartbeat, NodeState, PeerReport
from protocols.ids import PeerId, short
from protocols.reasons import Reason
from protocols.status import NodeStatus, ReasonCount

WINDOW_S: Final = 300.0
DISTRUST_S: Final = 3600.0
"""So long nothing is wanted of a node whose rollouts turned out not to be sampled."""
_MAX_REPORTED: Final = 1000
"""Of one report: nobody fills another's record at one stroke."""
_SMOOTHING: Final = 0.3
_LENGTH_HALF_LIFE: Final = 2000.0
_MAX_SUPERSEDED: Final = 8
"""Earlier sessions of one node that are remembered."""
TWIN_WARNING: Final = (
    "two processes run under this node's identity (a copied state directory?): stop one of them, "
    "or give it a --state-dir of its own"
)
TWIN_AFTER_BEATS: Final = 2
"""One heartbeat of an earlier session may have been under way; two are another process."""


class NodeTable:
    """All nodes of the run, present and past.

    Args:
        silent_after_s: a node that was not heard of for this long is lost.
        contributions: what nodes did while an earlier process of the learner ran.
    """

    def __init__(
        self,
        *,
        silent_after_s: float,
        contributions: Mapping[PeerId, NodeTotals] | None = None,
    ) -> None:
        self._contributions = dict(contributions or {})
        self._silent_after_s = silent_after_s
        self._nodes: dict[PeerId, Node] = {}
        self._published_at_s: dict[int, float] = {}
        self.update_bytes: int | None = None
        """What a node has to fetch for the newest version, if it held the one before."""
        self.epoch = 0
        """Grows whenever somebody comes or goes, or begins or ceases to be able to work."""
        self._num_rollouts = self._num_tokens = 0.0

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._nodes.values()))

    def get(self, peer: PeerId) -> Node | None:
        """Return what is known of ``peer``."""
        return self._nodes.get(peer)

    @property
    def present(self) -> list[Node]:
        """The nodes that were heard of lately and have not left."""
        return [node for node in self._nodes.values() if not node.is_lost]

    def is_proven(self, peer: PeerId) -> bool:
        """Whether rollouts of ``peer`` were ever accepted, by this process or an earlier one."""
        known = self._nodes.get(peer) or self._contributions.get(peer)
        return known is not None and known.num_accepted > 0

    def is_session(self, peer: PeerId, session_id: str) -> bool:
        """Whether ``peer`` is present, as this very process."""
        node = self._nodes.get(peer)
        return node is not None and not node.is_lost and node.session_id == session_id

    def published(self, version: int, now_s: float) -> None:
        """Note when a version was published, to measure its broadcast."""
        self._published_at_s[version] = now_s
        while len(self._published_at_s) > 1000:
            del self._published_at_s[next(iter(self._published_at_s))]

    def heartbeat(
        self, peer: PeerId, beat: Heartbeat, advert: NodeAdvert, now_s: float, *, host: str = ""
    ) -> NodeChange:
        """Take in what a node reports of itself.

        Args:
            peer: whose heartbeat it is.
            beat: what it says.
            advert: what it says it is.
            now_s: the time.
            host: from which address it comes; empty if that is not known.
        """
        node = self._nodes.get(peer)
        is_new_node, evicted = node is None, None
        if node is None:
            try:
                evicted = self._make_room(host, is_proven=self.is_proven(peer))
            except NoRoomError as exc:
                return NodeChange(no_room_why=str(exc))
            node = self._add(peer, beat, advert, now_s, host)
        if beat.session_id in node.superseded and not node.is_lost:
            return self._hear_superseded(node, beat, now_s)
        is_new_session = node.session_id != beat.session_id
        if is_new_session:
            _supersede(node, beat.session_id)
        is_back = node.is_lost and beat.state is not NodeState.LEFT
        if is_new_session or is_back:
            node.joined_at_s = now_s
            node.applied_version = None
        state_before = node.state if node.state is not beat.state else None
        applied_before = node.applied_version
        node.session_id, node.advert, node.state = beat.session_id, advert, beat.state
        _note(node, beat, now_s)
        kind_before = node.trouble and node.trouble.kind
        is_new_trouble = beat.trouble is not None and beat.trouble.kind is not kind_before
        node.trouble = beat.trouble
        if beat.state is NodeState.LEFT:
            node.lost(now_s)
        elif node.is_lost:
            node.is_lost = False
            node.presence.set_here(True, now_s)
        if is_new_node or is_new_session or is_back or state_before is not None:
            self.epoch += 1
        has_new_version = beat.applied_version not in (None, applied_before)
        broadcast_s = self._broadcast_s(node, now_s) if has_new_version else None
        return NodeChange(
            is_new_node=is_new_node,
            is_new_session=is_new_session,
            has_left=node.is_lost,
            evicted=evicted,
            is_back=is_back,
            state_before=state_before,
            applied_version=beat.applied_version if has_new_version else None,
            broadcast_s=broadcast_s,
            is_new_trouble=is_new_trouble,
        )

    def forget_visitor(self, peer: PeerId) -> bool:
        """Forget a node that has left without having done or fetched anything.

        A doctor's visit, say: nobody wants it on record.

        Returns:
            whether it was one.
        """
        node = self._nodes.get(peer)
        if node is None or not node.is_visitor:
            return False
        del self._nodes[peer]
        return True

    def has_twin(self, node: Node, now_s: float) -> bool:
        """Whether two processes run under this node's identity."""
        return node.twin_at_s is not None and now_s - node.twin_at_s <= self._silent_after_s

    def report(self, reporter: PeerId, report: PeerReport) -> None:
        """Note what one node had to refuse from another."""
        node = self._nodes.get(PeerId(report.peer_id))
        if node is not None and node.peer != reporter:
            node.refusals[report.reason] += min(report.count, _MAX_REPORTED)
            node.last_refusal = f"{report.reason}, reported by {short(reporter)}"

    def lose_silent(self, now_s: float) -> list[Node]:
        """Mark those that were silent for too long as lost; returns them."""
        lost = [n for n in self.present if now_s - n.heard_at_s > self._silent_after_s]
        for node in lost:
            node.lost(now_s)
        self.epoch += len(lost)
        return lost

    def next_silence_s(self) -> float | None:
        """Return when the next node will have been silent for too long."""
        return min((n.heard_at_s + self._silent_after_s for n in self.present), default=None)

    def accepted(self, peer: PeerId, count: int, now_s: float, *, num_tokens: int = 0) -> None:
        """Count accepted rollouts, and the tokens in them."""
        if (node := self._nodes.get(peer)) is not None and count:
            node.delivered(count, now_s)
            # Of the last few thousand: lengths change as the policy does.
            keep = 0.5 ** (count / _LENGTH_HALF_LIFE)
            self._num_rollouts = self._num_rollouts * keep + count
            self._num_tokens = self._num_tokens * keep + num_tokens

    @property
    def tokens_per_rollout(self) -> float | None:
        """How long accepted rollouts are lately; None before there were any."""
        return self._num_tokens / self._num_rollouts if self._num_tokens > 0 else None

    def refused(self, peer: PeerId, reason: Reason, detail: str, count: int = 1) -> None:
        """Count refusals for one reason."""
        if (node := self._nodes.get(peer)) is not None:
            node.refusals[reason] += count
            node.last_refusal = f"{reason}: {detail}"

    def trained(self, peer: PeerId, count: int) -> None:
        """Count rollouts that went into an update."""
        if (node := self._nodes.get(peer)) is not None:
            node.num_trained += count

    def sampled(self, peer: PeerId, found: SampledBy, now_s: float) -> str:
        """Note what an update tells of how a node's rollouts were sampled.

        Returns:
            why nothing of it is wanted from now on, for a while; empty if that is no news.
        """
        node = self._nodes.get(peer)
        if node is None:
            return ""
        node.sampling.add(found)
        if node.is_distrusted(now_s):
            return ""
        why = node.sampling.why_not_sampled(other.sampling for other in self._nodes.values())
        if why:
            node.sampling.forgive()
            node.distrust, node.distrusted_until_s = why, now_s + DISTRUST_S
            node.refusals[Reason.NOT_SAMPLED] += found.num_rollouts
            node.last_refusal = f"{Reason.NOT_SAMPLED}: {why}"
            node.direct(Directive.STANDBY, node.distrusted_why, now_s)
            self.epoch += 1
        return why

    def lease_took(self, peer: PeerId, took_s: float) -> None:
        """Note how long a finished lease took."""
        if (node := self._nodes.get(peer)) is not None:
            before = took_s if node.rollout_s is None else node.rollout_s
            node.rollout_s = before + _SMOOTHING * (took_s - before)

    def no_work(self, peer: PeerId, why: str) -> bool:
        """Note why a node will get no leases, or with an empty text that it may.

        Returns:
            whether that is news; while it stays so, the first text does, too.
        """
        node = self._nodes.get(peer)
        if node is None or bool(node.no_work_why) == bool(why):
            return False
        node.no_work_why = why
        return True

    def held_back(self, peer: PeerId, *, is_held: bool, now_s: float) -> None:
        """Note whether an evaluation keeps a node at one version, or that it ceases to."""
        node = self._nodes.get(peer)
        if node is not None and (is_held or node.held_back_until_s == inf):
            node.held_back_until_s = inf if is_held else now_s

    def working(self, peer: PeerId, *, has_lease: bool, now_s: float) -> None:
        """Note whether a node has a lease in hand."""
        if (node := self._nodes.get(peer)) is not None:
            node.work.set_working(has_lease, now_s)

    def status(
        self,
        node: Node,
        *,
        num_in_flight: int,
        link: LinkStatus,
        now_s: float,
        speed: Speed | None = None,
    ) -> NodeStatus:
        """Return the line that ``swarm status`` shows of a node."""
        return NodeStatus(
            peer_id=node.peer,
            name=node.advert.name,
            engine=node.advert.engine,
            device=node.advert.device,
            state=node.state,
            is_connected=not node.is_lost,
            seconds_since_heartbeat=max(0.0, now_s - node.heard_at_s),
            directive=node.directive,
            why=node.full_why,
            applied_version=node.applied_version,
            broadcast_s=node.broadcasts.last_s,
            rollouts_per_s=node.accepted.per_s(now_s),
            num_in_flight=num_in_flight,
            num_accepted=node.num_accepted,
            num_trained=node.num_trained,
            refusals=tuple(ReasonCount(r, c) for r, c in node.refusals.most_common()),
            last_refusal=node.last_refusal,
            usd_per_hour=node.advert.usd_per_hour,
            num_engine_restarts=node.num_engine_restarts,
            payload_bytes_sent=node.payload_bytes_sent,
            payload_bytes_received=node.payload_bytes_received,
            upload_bytes_per_s=link.upload_bytes_per_s,
            download_bytes_per_s=link.download_bytes_per_s,
            reachability=link.reachability,
            num_neighbours=link.num_neighbours,
            warning=TWIN_WARNING if self.has_twin(node, now_s) else link.warning,
            speed_rollouts_per_s=speed.rollouts_per_s if speed else None,
            speed_std=speed.std if speed else 0.0,
            num_speed_samples=speed.num_samples if speed else 0,
            is_speed_prior=speed.is_prior if speed else False,
            trouble=node.trouble,
            num_left_out=node.sampling.num_left_out,
        )

    def _hear_superseded(self, node: Node, beat: Heartbeat, now_s: float) -> NodeChange:
        if beat.state is NodeState.LEFT:
            return NodeChange(is_superseded=True)  # The last word of the process before: no twin.
        node.superseded[beat.session_id] += 1
        if node.superseded[beat.session_id] < TWIN_AFTER_BEATS:
            return NodeChange(is_superseded=True)
        is_new_twin = not self.has_twin(node, now_s)
        node.twin_at_s = now_s
        return NodeChange(is_superseded=True, is_new_twin=is_new_twin)

    def _broadcast_s(self, node: Node, now_s: float) -> float | None:
        published_at_s = self._published_at_s.get(node.applied_version or 0)
        # A node that kept an older version measures its evaluation, not the broadcast.
        if published_at_s is None or node.held_back_until_s >= published_at_s:
            return None
        return node.broadcasts.add(
            joined_at_s=node.joined_at_s, published_at_s=published_at_s, applied_at_s=now_s
        )

    def _add(
        self, peer: PeerId, beat: Heartbeat, advert: NodeAdvert, now_s: float, host: str
    ) -> Node:
        """Take in a node that was not known."""
        node = self._nodes[peer] = Node(
            peer=peer,
            session_id=beat.session_id,
            advert=advert,
            state=beat.state,
            joined_at_s=now_s,
            heard_at_s=now_s,
            host=host,
            accepted=WindowSum(WINDOW_S, started_s=now_s),
            presence=Presence(now_s),
        )
        self._credit(node)
        return node

    def _credit(self, node: Node) -> None:
        """Give a node what it did while an earlier process of the learner ran."""
        before = self._contributions.pop(node.peer, None)
        if before is not None:
            node.num_accepted, node.num_trained = before.num_accepted, before.num_trained
            node.refusals.update(before.refusals)

    def forget_idle(self, now_s: float) -> list[PeerId]:
        """Forget the nodes that are gone for long and of which nothing was ever accepted."""
        forgotten = [node.peer for node in idle(self._nodes.values(), now_s)]
        for peer in forgotten:
            del self._nodes[peer]
        return forgotten

    def _make_room(self, host: str, *, is_proven: bool) -> PeerId | None:
        """Forget a node if there are too many; returns it."""
        victim = who_gives_way(self._nodes.values(), host=host, is_proven=is_proven)
        if victim is None:
            return None
        if victim.num_accepted:
            # What it did counts again when it is back.
            self._contributions[victim.peer] = NodeTotals(
                num_accepted=victim.num_accepted,
                num_trained=victim.num_trained,
                refusals=dict(victim.refusals),
            )
        del self._nodes[victim.peer]
        return victim.peer


def _supersede(node: Node, session_id: str) -> None:
    """Remember the session that another one takes the place of."""
    node.superseded.pop(session_id, None)
    node.superseded[node.session_id] = 0
    while len(node.superseded) > _MAX_SUPERSEDED:
        del node.superseded[next(iter(node.superseded))]


def _note(node: Node, beat: Heartbeat, now_s: float) -> None:
    """Note what a heartbeat reports of versions, engine and bytes."""
    node.heard_at_s = now_s
    node.applied_version, node.held_version = beat.applied_version, beat.held_version
    if beat.applied_version is None:
        node.ready_at_s = None
    elif node.ready_at_s is None:
        node.ready_at_s = now_s
    node.num_engine_restarts = beat.num_engine_restarts
    node.payload_bytes_sent = beat.payload_bytes_sent
    node.payload_bytes_received = beat.payload_bytes_received
    node.calibrated_tokens_per_s = beat.calibrated_tokens_per_s
