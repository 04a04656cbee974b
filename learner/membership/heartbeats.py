"""Takes in heartbeats and notices silence; ``/echo2/heartbeat``."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.text.format import printable
from learner.ledger.ledger import Ledger
from learner.membership.activator import Activator
from learner.membership.advert_addresses import AdvertFilter
from learner.rollouts.work_kind import WorkKind
from learner.state.link_table import TICK_S, LinkTable
from learner.state.node import Node, NodeChange
from learner.state.node_table import TWIN_WARNING, NodeTable
from learner.state.progress import LearnerProgress
from protocols import advert as advert_protocol
from protocols.errors import RemoteProtocolError
from protocols.heartbeat import (
    CALL,
    Directive,
    HeartbeatReply,
    PeerAddresses,
)
from protocols.ids import PeerId, PolicyVersion, RunId, short
from protocols.reasons import Reason

log = structlog.get_logger()


NO_ROOM_HEARTBEAT_S: Final = 5.0
"""A node for which there was no room asks again after so long."""


class HeartbeatService:
    """Who takes part.

    Args:
        kinds: of work, whose leases end with the sessions of nodes.
        run_id: which run.
        nodes: who takes part.
        ledger: what is recorded.
        progress: of the run.
        activator: decides who works.
        heartbeat_s: how often nodes report.
        links: what is known of their lines.
        changes: notified when there may be work for somebody.
        host_of: returns the address from which a peer comes; empty if it is not known.
        newest_version: returns the newest version published.
        adverts: drops addresses that others are not to dial.
    """

    def __init__(
        self,
        kinds: Sequence[WorkKind],
        *,
        run_id: RunId,
        nodes: NodeTable,
        ledger: Ledger,
        progress: LearnerProgress,
        activator: Activator,
        heartbeat_s: float,
        links: LinkTable,
        changes: ChangeEvent,
        host_of: Callable[[PeerId], str],
        newest_version: Callable[[], PolicyVersion | None],
        adverts: AdvertFilter,
    ) -> None:
        self._adverts = adverts
        self._host_of = host_of
        self._links = links
        self._kinds = kinds
        self._newest_version = newest_version
        self._run_id = run_id
        self._nodes = nodes
        self._ledger = ledger
        self._progress = progress
        self._activator = activator
        self._heartbeat_s = heartbeat_s
        self._changes = changes

    async def answer(self, peer: PeerId, data: bytes) -> bytes:
        """Return the reply to one heartbeat.

        Raises:
            RemoteProtocolError: it is of another run, or its advert is not the sender's.
        """
        beat = CALL.decode_request(data)
        if beat.run_id != self._run_id:
            raise RemoteProtocolError(
                f"heartbeat for run {beat.run_id!r}, this is {self._run_id!r}",
                reason=Reason.WRONG_RUN,
            )
        known = self._nodes.get(peer)
        if known is not None and known.sealed_advert == beat.advert:
            advert = known.advert
        else:
            advert = self._adverts.filtered(
                advert_protocol.verify_advert(beat.advert, run=self._run_id, peer=peer)
            )
        now_s = trio.current_time()
        news = self._nodes.heartbeat(peer, beat, advert, now_s, host=self._host_of(peer))
        if news.no_room_why:
            return CALL.encode_reply(self._reply_to_nobody(news.no_room_why))
        node = self._nodes.get(peer)
        assert node is not None  # noqa: S101 - entered a line above
        if node.advert is advert:
            node.sealed_advert = beat.advert
        if news.is_superseded:
            if news.is_new_twin:
                log.error("identity.shared", peer=short(peer), name=advert.name, why=TWIN_WARNING)
            return CALL.encode_reply(self._reply_to_superseded())
        if news.evicted is not None:
            self._forget(news.evicted)
            await self._end_sessions(news.evicted, except_session=None)
        if news.has_left:
            self._links.gone(peer)
        else:
            is_start = news.is_new_node or news.is_new_session or news.is_back
            self._links.heard(peer, beat, advert, now_s, is_start=is_start)
        for report in beat.reports:
            self._nodes.report(peer, report)
            self._links.reported(peer, report, now_s)
            log.warning(
                "peer.reported",
                peer=short(PeerId(report.peer_id)),
                by=short(peer),
                reason=report.reason.value,
                count=report.count,
            )
        await self._act_on(news, node)
        if news.has_left and self._nodes.forget_visitor(peer):
            self._forget(peer)
        return CALL.encode_reply(self._reply_to(node))

    async def watch(self) -> None:
        """Notice nodes that fell silent."""
        next_tick_s = trio.current_time()
        while True:
            if trio.current_time() >= next_tick_s:
                self._links.tick(trio.current_time())
                next_tick_s = trio.current_time() + TICK_S
                for peer in self._nodes.forget_idle(trio.current_time()):
                    self._forget(peer)
            for node in self._nodes.lose_silent(trio.current_time()):
                log.warning("node.lost", peer=short(node.peer), name=node.advert.name)
                self._links.gone(node.peer)
                self._activator.changed()
                await self._end_sessions(node.peer, except_session=None)
            wake_s = min(next_tick_s, self._nodes.next_silence_s() or next_tick_s)
            await trio.sleep(max(0.05, wake_s - trio.current_time()))

    async def dismiss(self, *, grace_s: float) -> None:
        """Tell every node that the run is over; returns when all have left, or after a while."""
        self._activator.finish()
        with trio.move_on_after(grace_s):
            while self._nodes.present:
                await self._changes.next_change.wait()

    async def _act_on(self, news: NodeChange, node: Node) -> None:
        name = node.advert.name
        if news.is_new_node or news.is_new_session:
            event = "node.joined" if news.is_new_node else "node.returned"
            log.info(
                event,
                peer=short(node.peer),
                name=name,
                engine=node.advert.engine,
                device=node.advert.device,
                usd_per_hour=node.advert.usd_per_hour,
            )
        if news.state_before is not None:
            log.info("node.state", peer=short(node.peer), name=name, state=node.state.value)
        if news.is_new_trouble and node.trouble is not None:
            log.warning(
                "node.trouble",
                peer=short(node.peer),
                name=name,
                kind=node.trouble.kind.value,
                detail=printable(node.trouble.detail),
            )
        if news.applied_version is not None:
            if news.broadcast_s is not None:
                self._progress.broadcast_s.add(news.broadcast_s, trio.current_time())
            log.info(
                "version.applied",
                version=news.applied_version,
                peer=short(node.peer),
                name=name,
                broadcast_s=news.broadcast_s and round(news.broadcast_s, 3),
                is_kept=self._nodes.is_proven(node.peer),
            )
        if news.is_new_session or news.has_left:
            await self._end_sessions(
                node.peer, except_session=None if news.has_left else node.session_id
            )
        if news.is_back and not news.is_new_session:
            for kind in self._kinds:
                await kind.node_is_back(node.peer, node.session_id)
        # Of nodes that have delivered something: who only says hello must not fill the disk.
        if (news.is_new_node or news.is_new_session) and self._nodes.is_proven(node.peer):
            await self._ledger.joined(node.peer, node.advert, now_unix_s=time.time())
        if news.is_new_node or news.is_new_session or news.is_back:
            self._activator.admit(node)
        elif news != NodeChange():
            self._activator.changed()
        if news != NodeChange():
            # A request for work that is held may be granted now: of its new version, say.
            self._changes.notify()

    async def _end_sessions(self, peer: PeerId, *, except_session: str | None) -> None:
        for kind in self._kinds:
            await kind.end_sessions(peer, except_session=except_session)

    def _reply_to(self, node: Node) -> HeartbeatReply:
        now_s = trio.current_time()
        has_twin = self._nodes.has_twin(node, now_s)
        return HeartbeatReply(
            directive=node.directive,
            why=printable(node.full_why),
            learner_step=self._progress.step,
            newest_version=self._newest_version() or 0,
            next_heartbeat_s=self._heartbeat_s,
            neighbours=self._neighbours_of(node.peer),
            upload_bytes_per_s=self._links.upload_bytes_per_s(node.peer),
            warning=TWIN_WARNING if has_twin else self._links.warning_of(node.peer, now_s),
            num_trained=node.num_trained,
        )

    def _reply_to_nobody(self, why: str) -> HeartbeatReply:
        """Return what a node is told for which there is no room."""
        is_finished = self._progress.is_finished
        return HeartbeatReply(
            directive=Directive.FINISHED if is_finished else Directive.STANDBY,
            why=f"standby: {why}",
            learner_step=self._progress.step,
            newest_version=self._newest_version() or 0,
            next_heartbeat_s=max(self._heartbeat_s, NO_ROOM_HEARTBEAT_S),
            neighbours=(),
            warning=why,
        )

    def _forget(self, peer: PeerId) -> None:
        self._links.forget(peer)
        self._activator.forget(peer)

    def _reply_to_superseded(self) -> HeartbeatReply:
        """Return what a process is told whose identity a later one has taken over."""
        is_finished = self._progress.is_finished
        return HeartbeatReply(
            directive=Directive.FINISHED if is_finished else Directive.STANDBY,
            why="standby: a process that was started later runs under the same identity",
            learner_step=self._progress.step,
            newest_version=self._newest_version() or 0,
            next_heartbeat_s=self._heartbeat_s,
            neighbours=(),
            warning=TWIN_WARNING,
        )

    def _neighbours_of(self, peer: PeerId) -> tuple[PeerAddresses, ...]:
        neighbours = (self._nodes.get(other) for other in self._links.neighbours_of(peer))
        return tuple(
            PeerAddresses(node.peer, node.advert.addresses)
            for node in neighbours
            if node is not None
        )
