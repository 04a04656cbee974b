"""The state of the run, for ``swarm status``: as a file, and by protocol ``/echo2/status``."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from echo2swarm.network.base import Network
from echo2swarm.plan.advice import advise
from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.system.files import write_atomically
from echo2swarm.system.rates import LearnerPhase
from echo2swarm.weights.transfer.traffic import Traffic
from learner.membership.activator import Activator
from learner.membership.offers import speeds_of
from learner.rollouts.work_kind import WorkKind
from learner.scoring.verifier_gate import VerifierGate
from learner.state.link_table import LinkTable
from learner.state.node_admission import by_use
from learner.state.node_table import NodeTable
from learner.state.progress import WINDOW_S, LearnerProgress, p95_or_none
from learner.status.outlook import outlook_of, situation_of
from learner.status.watchdog import Watchdog
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId
from protocols.reasons import Reason
from protocols.status import (
    CALL,
    MAX_NODES,
    EncodedStatus,
    EvaluationStatus,
    Outlook,
    ReasonCount,
    StalenessCount,
    StatusReply,
)

WRITE_EVERY_S: Final = 1.0
BUILD_EVERY_S: Final = 1.0
"""However often it is asked for, the status is put together so seldom."""
ADVISE_EVERY_S: Final = 2.0
_NAP_S: Final = 0.25

log = structlog.get_logger()


class StatusService:
    """Puts together what the cores know."""

    def __init__(
        self,
        *,
        run_id: str,
        network: Network,
        dispatcher: Dispatcher,
        nodes: NodeTable,
        progress: LearnerProgress,
        traffic: Traffic,
        links: LinkTable,
        activator: Activator,
        watchdog: Watchdog,
        gate: VerifierGate,
        wait_of: Callable[[PeerId], str | None],
        kinds: Sequence[WorkKind],
        evaluation: Callable[[], EvaluationStatus] | None = None,
    ) -> None:
        self._gate = gate
        self._wait_of = wait_of
        self._kinds = kinds
        self._evaluation = evaluation
        self._activator = activator
        self._watchdog = watchdog
        self._has_failed_to_write = False
        self._links = links
        self._run_id = run_id
        self._network = network
        self._dispatcher = dispatcher
        self._nodes = nodes
        self._progress = progress
        self._traffic = traffic
        self._advised: tuple[bool, int, str] | None = None
        self._advise_at_s = 0.0
        self._outlook: Outlook | None = None
        self._encoded: EncodedStatus | None = None
        self._encoded_at_s = 0.0

    async def answer(self, peer: PeerId, data: bytes) -> bytes:
        """Return the reply to one request.

        Raises:
            RemoteProtocolError: it is about another run.
        """
        request = CALL.decode_request(data)
        if request.run_id != self._run_id:
            raise RemoteProtocolError(
                f"status of run {request.run_id!r} asked for, this is {self._run_id!r}",
                reason=Reason.WRONG_RUN,
            )
        await trio.lowlevel.checkpoint()
        ends = self._network.ends(peer)
        return self._encoded_now().seen_from("" if ends is None else ends.other)

    def _encoded_now(self) -> EncodedStatus:
        """Return a status that is a second old at most, however often it is asked for."""
        now_s = trio.current_time()
        if self._encoded is None or now_s >= self._encoded_at_s + BUILD_EVERY_S:
            self._encoded, self._encoded_at_s = EncodedStatus(self.status()), now_s
        return self._encoded

    def status(self) -> StatusReply:
        """Return the state of the run now."""
        now_s, progress = trio.current_time(), self._progress
        shares = progress.timeline.shares(now_s, WINDOW_S)
        delays_s = progress.loop_delay_s.get(now_s)
        refusals: Counter[Reason] = Counter()
        lines = []
        speeds = speeds_of(self._nodes, now_s)
        nodes = list(self._nodes)
        for node in nodes:
            refusals.update(node.refusals)
        shown = by_use(nodes)[:MAX_NODES] if len(nodes) > MAX_NODES else nodes
        for node in sorted(shown, key=lambda node: node.joined_at_s):
            line = self._nodes.status(
                node,
                num_in_flight=sum(kind.num_in_hand(node.peer) for kind in self._kinds),
                link=self._links.status(node.peer, now_s),
                now_s=now_s,
                speed=speeds.get(node.peer),
            )
            if (waits := self._wait_of(node.peer)) is not None:
                line = msgspec.structs.replace(line, warning=waits)
            lines.append(line)
        return StatusReply(
            run_id=self._run_id,
            phase=progress.timeline.phase,
            at_unix_s=time.time(),
            uptime_s=now_s - progress.started_s,
            learner_step=progress.step,
            num_steps=progress.num_steps,
            newest_version=self._dispatcher.newest_version or 0,
            max_staleness=progress.rollouts.max_staleness,
            publish_every=progress.rollouts.publish_every,
            rollouts_per_step=progress.rollouts_per_step,
            group_size=progress.rollouts.group_size,
            window_s=WINDOW_S,
            busy_share=min(1.0, shares.get(LearnerPhase.TRAINING, 0.0)),
            bubble_share=min(1.0, shares.get(LearnerPhase.WAITING, 0.0)),
            train_s=progress.typical_train_s(now_s),
            broadcast_s=p95_or_none(progress.broadcast_s.get(now_s)),
            needed_rollouts_per_s=progress.needed_rollouts_per_s(now_s),
            supplied_rollouts_per_s=progress.accepted.per_s(now_s),
            num_buffered=sum(len(group.rollouts) for group in self._dispatcher.ready),
            num_in_flight=self._dispatcher.leases.num_unsettled,
            staleness=tuple(
                StalenessCount(lag, count) for lag, count in sorted(progress.staleness.items())
            ),
            reward_mean=progress.reward_mean,
            refusals=tuple(ReasonCount(r, c) for r, c in refusals.most_common()),
            worst_heartbeat_delay_s=max(delays_s, default=0.0),
            payload_bytes_sent=self._traffic.sent_bytes,
            advice=self._advice(now_s),
            nodes=tuple(lines),
            num_nodes_left_out=len(nodes) - len(shown),
            expected_broadcast_s=self._expected_broadcast_s(),
            upload_bytes_per_s=self._links.own_upload_bytes_per_s,
            outlook=self._outlook_now(now_s),
            evaluation=None if self._evaluation is None else self._evaluation(),
        )

    def _outlook_now(self, now_s: float) -> Outlook:
        """Return what the capacity model says; of a run that is over, what it said last."""
        if self._outlook is None or not self._progress.is_finished:
            offers = self._activator.offers(now_s)
            self._outlook = outlook_of(self._progress, offers, now_s)
        return self._outlook

    def _advice(self, now_s: float) -> str:
        """Return what the owner could do; thought over now and then, and when much changes."""
        found = [self._gate.report(now_s) or self._usual_advice(now_s)]
        if not self._progress.is_finished:
            found.append(self._progress.left_out.report)
        return "; ".join(filter(None, found))

    def _usual_advice(self, now_s: float) -> str:
        if self._watchdog.report:
            return f"nothing moves: {self._watchdog.report}"
        facts = (self._progress.is_finished, len(self._nodes.present))
        if self._advised is None or self._advised[:2] != facts or now_s >= self._advise_at_s:
            situation = situation_of(self._progress, self._nodes, self._activator, now_s)
            self._advised = (*facts, advise(situation))
            self._advise_at_s = now_s + ADVISE_EVERY_S
        return self._advised[2]

    def _expected_broadcast_s(self) -> float | None:
        if self._nodes.update_bytes is None:
            return None
        present = [node.peer for node in self._nodes.present]
        return self._links.expected_broadcast_s(self._nodes.update_bytes, present)

    async def keep_file(self, path: Path) -> None:
        """Write the status into ``path`` each second."""
        while True:
            await self.write_file(path)
            await trio.sleep(WRITE_EVERY_S)

    async def write_file(self, path: Path) -> None:
        """Write the status into ``path``; a full disk costs only the file, and is told once."""
        data = msgspec.json.format(msgspec.json.encode(self.status()), indent=2)
        try:
            await trio.to_thread.run_sync(partial(write_atomically, path, data, is_durable=False))
        except OSError as exc:
            if not self._has_failed_to_write:
                log.warning("status.not_written", file=str(path), error=exc.strerror)
            self._has_failed_to_write = True
        else:
            self._has_failed_to_write = False


async def watch_loop_delay(progress: LearnerProgress) -> None:
    """Measure by how much this process' event loop is late, all the time."""
    while True:
        due_s = trio.current_time() + _NAP_S
        worst_s = 0.0
        for _ in range(4):
            await trio.sleep_until(due_s)
            worst_s = max(worst_s, trio.current_time() - due_s)
            due_s = trio.current_time() + _NAP_S
        progress.loop_delay_s.add(worst_s, trio.current_time())
