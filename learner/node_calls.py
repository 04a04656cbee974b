"""Which calls of nodes and observers the learner answers, with their limits."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from echo2swarm.network.rpc import Answer, serve_calls
from learner.membership.heartbeats import HeartbeatService
from learner.membership.probes import ProbeService
from learner.parts import LearnerParts, RunState
from learner.rollouts.cancel_answers import CancelAnswers
from learner.rollouts.lease_service import LeaseService
from learner.rollouts.rollout_service import RolloutService
from learner.rollouts.work_kind import WorkKind
from learner.status.service import StatusService
from protocols import heartbeat, leases, rollouts, status
from protocols.ids import PeerId

_JUDGE_S: Final = 300.0
"""For one submission: scoring runs the user's code."""
_ANSWER_S: Final = 20.0
_WORK_CALLS_PER_S: Final = 100.0
"""Of one node, for leases as for submissions: tiny models are done soon."""
_HEARTBEATS_PER_S: Final = 10.0
"""Of one node: it also beats when something changes."""
_STATUS_PER_S: Final = 2.0
"""Of one peer."""


class _Served(NamedTuple):
    protocol: str
    answer: Answer
    max_request_bytes: int
    max_reply_bytes: int
    timeout_s: float
    max_per_s: float = _WORK_CALLS_PER_S


def serve_nodes(
    parts: LearnerParts,
    state: RunState,
    kinds: Sequence[WorkKind],
    *,
    membership: HeartbeatService,
    status_service: StatusService,
    answering: CancelAnswers,
) -> None:
    """Answer nodes and observers from now on.

    Args:
        parts: of the learner.
        state: of the run.
        kinds: of work.
        membership: answers heartbeats.
        status_service: answers observers.
        answering: ends the answers that are under way when the run ends.
    """
    parts.network.protect(state.nodes.is_proven)
    served = (
        _Served(
            heartbeat.PROTOCOL_ID,
            membership.answer,
            heartbeat.MAX_REQUEST_BYTES,
            heartbeat.MAX_REPLY_BYTES,
            _ANSWER_S,
            _HEARTBEATS_PER_S,
        ),
        *_work_calls(parts, state, kinds),
        _Served(
            status.PROTOCOL_ID,
            status_service.answer,
            status.MAX_REQUEST_BYTES,
            status.MAX_REPLY_BYTES,
            _ANSWER_S,
            _STATUS_PER_S,
        ),
    )
    for call in served:
        serve_calls(
            parts.network,
            call.protocol,
            answering.guard(call.answer),
            max_request_bytes=call.max_request_bytes,
            max_reply_bytes=call.max_reply_bytes,
            timeout_s=call.timeout_s,
            max_per_s=call.max_per_s,
        )

    def is_present(peer: PeerId) -> bool:
        node = state.nodes.get(peer)
        return node is not None and not node.is_lost

    ProbeService(
        run_id=parts.run_id,
        is_member=is_present,
        is_sending=lambda: parts.links.is_sending(trio.current_time()),
        on_measured=parts.links.probed,
    ).serve(parts.network)


def _work_calls(
    parts: LearnerParts, state: RunState, kinds: Sequence[WorkKind]
) -> tuple[_Served, ...]:
    lease_service = LeaseService(
        kinds,
        run_id=parts.run_id,
        nodes=state.nodes,
        progress=state.progress,
        changes=state.changes,
        wait_of=parts.scorer.wait_of,
    )
    rollout_service = RolloutService(
        kinds,
        run_id=parts.run_id,
        nodes=state.nodes,
        ledger=parts.ledger,
        progress=state.progress,
        changes=state.changes,
    )
    lease_limits = leases.MAX_REQUEST_BYTES, leases.MAX_REPLY_BYTES
    lease_s = leases.MAX_WAIT_S + _ANSWER_S
    return (
        _Served(leases.PROTOCOL_ID, lease_service.answer, *lease_limits, lease_s),
        _Served(leases.OLD_PROTOCOL_ID, lease_service.answer_old, *lease_limits, lease_s),
        _Served(
            rollouts.PROTOCOL_ID,
            rollout_service.answer,
            rollouts.MAX_REQUEST_BYTES,
            rollouts.MAX_REPLY_BYTES,
            _JUDGE_S,
        ),
    )
