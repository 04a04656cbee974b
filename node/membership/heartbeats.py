"""Heartbeats to the learner: what this node is, and what is wanted of it.

The learner is called by its peer id; finding where it is, and connecting to it
again when it restarts or moves, is :mod:`echo2swarm.network.discovery`'s.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, NoReturn

import structlog
import trio

from echo2swarm.network.backoff import Backoff
from echo2swarm.network.base import Network
from echo2swarm.network.rpc import call_remote
from echo2swarm.system.change_event import ChangeEvent, wait_any
from echo2swarm.system.errors import NetworkError
from node.membership.contact import LearnerContact
from node.membership.heartbeat_timer import Contact
from node.owner.remedies import remedy_for
from protocols import heartbeat
from protocols.errors import RemoteProtocolError
from protocols.heartbeat import (
    MAX_REPORTS,
    Directive,
    Heartbeat,
    HeartbeatReply,
    LinkReport,
    NodeState,
    PeerReport,
    Trouble,
)
from protocols.ids import PeerId, PolicyVersion, short
from protocols.lifecycle import Activate, Deactivate, Event, LearnerFound, LearnerLost, RunFinished

log = structlog.get_logger()

GOODBYE_S: Final = 3.0
MAX_RETRY_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a heartbeat says of the node."""

    state: NodeState
    applied_version: PolicyVersion | None
    held_version: PolicyVersion | None
    num_rollouts_in_hand: int
    num_engine_restarts: int
    payload_bytes_sent: int
    payload_bytes_received: int
    receiving_s: float = 0.0
    links: tuple[LinkReport, ...] = ()
    calibrated_tokens_per_s: float | None = None
    trouble: Trouble | None = None


class HeartbeatClient:
    """Keeps the learner informed, and tells what it answers.

    Args:
        network: ours.
        run_id: which run.
        learner: whom to tell.
        session_id: of this process.
        sealed_advert: what we are, signed.
        report: what we do now.
        take_faults: what other peers had to be refused since the last call.
        on_event: told of every change in contact, and of each directive.
        on_reply: gets each answer, after that.
        contact: with the learner, as others see it; one of its own if there are none.
        rng: for jitter.
    """

    def __init__(
        self,
        network: Network,
        *,
        run_id: str,
        learner: PeerId,
        session_id: str,
        sealed_advert: Callable[[], bytes],
        report: Callable[[], NodeReport],
        take_faults: Callable[[], tuple[PeerReport, ...]],
        on_event: Callable[[Event], None],
        on_reply: Callable[[HeartbeatReply], None],
        contact: LearnerContact | None = None,
        rng: random.Random,
    ) -> None:
        self._network = network
        self._run_id = run_id
        self._learner = learner
        self._session_id = session_id
        self._sealed_advert = sealed_advert
        self._report = report
        self._take_faults = take_faults
        self._on_event = on_event
        self._on_reply = on_reply
        self._contact = contact or LearnerContact()
        self._pacer = self._contact.pacer
        self._backoff = Backoff(rng, cap_s=MAX_RETRY_S)
        self._answers = ChangeEvent()
        self._beating = trio.Lock()
        self._untold: tuple[PeerReport, ...] = ()
        self._last_said: tuple[Directive, str] | None = None
        self._last_warning = ""
        self._has_complained = False
        self._heard_at_s: float | None = None
        self._last_reply: HeartbeatReply | None = None
        self._last_error = ""

    @property
    def has_learner(self) -> bool:
        """Whether the learner answered lately."""
        return self._pacer.has_learner

    @property
    def is_failing(self) -> bool:
        """Whether the learner did not answer the last call."""
        return self._pacer.is_failing

    @property
    def heard_at_s(self) -> float | None:
        """When the learner answered last; None if it never has."""
        return self._heard_at_s

    @property
    def last_reply(self) -> HeartbeatReply | None:
        """What it answered last."""
        return self._last_reply

    @property
    def last_error(self) -> str:
        """Why the last call had no answer; empty if it had one."""
        return self._last_error

    async def wait_for_learner(self) -> None:
        """Return when the learner has answered."""
        while not self._pacer.has_learner:
            await self._answers.next_change.wait()

    def announce(self) -> None:
        """Send a heartbeat now: something has changed, or the learner seems not to know us."""
        self._contact.announce()

    async def run(self) -> NoReturn:
        """Send heartbeats until cancelled."""
        while True:
            await self._wait_until_due()
            self._pacer.sent(trio.current_time())
            try:
                reply = await self._beat(heartbeat.CALL.timeout_s)
            except (NetworkError, RemoteProtocolError) as exc:
                self._failed(exc)
                if isinstance(exc, NetworkError) and self._pacer.is_stuck:
                    # The connection may look alive and carry nothing; discovery makes a new one.
                    log.info("connection.renewing", learner=short(self._learner), error=str(exc))
                    await self._network.disconnect(self._learner)
            else:
                self._answered(reply)

    async def say_goodbye(self) -> None:
        """Tell the learner our last state, if it answers soon."""
        if not self._pacer.has_learner or self._pacer.is_failing:
            return
        with trio.move_on_after(GOODBYE_S):
            try:
                await self._beat(GOODBYE_S)
            except (NetworkError, RemoteProtocolError) as exc:
                log.debug("goodbye.unheard", error=str(exc))

    async def _wait_until_due(self) -> None:
        while True:
            change = self._contact.changes.next_change
            connection_ring = self._network.connection_changes.next_change
            now_s = trio.current_time()
            wake_at_s = self._pacer.due_s
            if wake_at_s <= now_s:
                if self._pacer.has_learner or self._learner in self._network.connected_peers():
                    return
                # Not found yet, or lost: discovery will connect to it.
                wake_at_s = inf
            with trio.move_on_at(wake_at_s):
                await wait_any(change, connection_ring)

    async def _beat(self, timeout_s: float) -> HeartbeatReply:
        # One at a time: of two on their way, the older might arrive last, and be believed.
        async with self._beating:
            return await self._beat_now(timeout_s)

    async def _beat_now(self, timeout_s: float) -> HeartbeatReply:
        report = self._report()
        self._untold = (self._untold + self._take_faults())[:MAX_REPORTS]
        told = self._untold
        beat = Heartbeat(
            run_id=self._run_id,
            session_id=self._session_id,
            advert=self._sealed_advert(),
            state=report.state,
            applied_version=report.applied_version,
            held_version=report.held_version,
            num_rollouts_in_hand=report.num_rollouts_in_hand,
            num_engine_restarts=report.num_engine_restarts,
            payload_bytes_sent=report.payload_bytes_sent,
            payload_bytes_received=report.payload_bytes_received,
            receiving_s=report.receiving_s,
            reports=told,
            links=report.links,
            calibrated_tokens_per_s=report.calibrated_tokens_per_s,
            trouble=report.trouble,
        )
        reply = await call_remote(
            self._network, self._learner, heartbeat.CALL, beat, timeout_s=timeout_s
        )
        self._untold = self._untold[len(told) :]
        return reply

    def _answered(self, reply: HeartbeatReply) -> None:
        self._heard_at_s, self._last_reply, self._last_error = trio.current_time(), reply, ""
        self._backoff.reset()
        self._has_complained = False
        contact = self._pacer.answered(trio.current_time(), next_heartbeat_s=reply.next_heartbeat_s)
        if contact is Contact.FOUND:
            log.info(
                "learner.answers",
                learner=short(self._learner),
                step=reply.learner_step,
                version=reply.newest_version,
            )
            self._on_event(LearnerFound())
        if (reply.directive, reply.why) != self._last_said:
            self._last_said = reply.directive, reply.why
            log.info("learner.says", directive=reply.directive.value, why=reply.why)
        if reply.warning != self._last_warning:
            self._last_warning = reply.warning
            if reply.warning:
                log.warning("learner.warns", warning=reply.warning)
            else:
                log.info("warning.over")
        match reply.directive:
            case Directive.ACTIVE:
                self._on_event(Activate())
            case Directive.STANDBY:
                self._on_event(Deactivate())
            case Directive.FINISHED:
                self._on_event(RunFinished())
        self._on_reply(reply)
        self._answers.notify()

    def _failed(self, exc: NetworkError | RemoteProtocolError) -> None:
        retry_s = self._backoff.next_s()
        remedy = remedy_for(str(exc))
        self._last_error = f"{exc}; {remedy}" if remedy else str(exc)
        contact = self._pacer.failed(trio.current_time(), retry_s=retry_s)
        if not self._has_complained:
            self._has_complained = True
            log.warning(
                "heartbeat.unanswered",
                learner=short(self._learner),
                reason=exc.reason.value if isinstance(exc, RemoteProtocolError) else "network",
                error=self._last_error,
                retry_in_s=round(retry_s, 1),
            )
        if contact is Contact.LOST:
            log.warning(
                "learner.silent",
                learner=short(self._learner),
                next="keeping what is in hand, and trying again until it answers",
            )
            self._on_event(LearnerLost())
