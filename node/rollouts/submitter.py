"""Hands finished rollouts in, until the learner has judged them or given up on their lease."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog
import trio

from echo2swarm.network.backoff import Backoff
from echo2swarm.scheduling.workload import Ending, Workload
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from node.rollouts.learner_client import LearnerClient
from node.rollouts.tally import RefusalNotice, RefusalTally
from protocols.errors import RemoteProtocolError
from protocols.packed import num_packed
from protocols.reasons import Reason
from protocols.rollouts import Rollout, RolloutVerdict, SubmissionReply

log = structlog.get_logger()

MAX_RETRY_S: Final = 20.0
_PASSING: Final = frozenset({Reason.NOT_A_MEMBER, Reason.RATE_LIMITED, Reason.INTERNAL})
"""Refusals that a later attempt may not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Rollouts on their way."""

    lease_id: str
    rollouts: tuple[Rollout, ...]
    generated_in_s: float
    num_attempts: int = 0


class Submitter:
    """Submits one after the other.

    Args:
        calls: to the learner.
        work: told what became of each.
        tally: counts verdicts.
        on_ended: gets the leases that ended by this.
        on_step: told the learner's step.
        on_doubt: the learner may not know us; it should get a heartbeat.
        wanted: notified when the learner (again) wants work: no reason to wait any longer.
        rng: for jitter.
    """

    def __init__(
        self,
        calls: LearnerClient,
        work: Workload,
        tally: RefusalTally,
        *,
        on_ended: Callable[[Sequence[Ending]], None],
        on_step: Callable[[int], None],
        on_doubt: Callable[[], None],
        wanted: ChangeEvent,
        rng: random.Random,
    ) -> None:
        self._calls = calls
        self._work = work
        self._tally = tally
        self._on_ended = on_ended
        self._on_step = on_step
        self._on_doubt = on_doubt
        self._wanted = wanted
        self._rng = rng

    async def run(self, inbox: "trio.MemoryReceiveChannel[Submission]") -> None:
        """Submit what comes in, until there is no more to come."""
        async for submission in inbox:
            await self._submit(submission)

    async def _submit(self, submission: Submission) -> None:
        backoff = Backoff(self._rng, cap_s=MAX_RETRY_S)
        while self._work.has(submission.lease_id):
            change = self._wanted.next_change
            try:
                reply = await self._calls.submit(
                    submission.lease_id,
                    submission.rollouts,
                    generated_in_s=submission.generated_in_s,
                )
            except (NetworkError, RemoteProtocolError) as exc:
                trouble = str(exc)
            else:
                if reply.refusal not in _PASSING:
                    self._judged(submission, reply)
                    return
                trouble = f"{reply.refusal}: {reply.detail}"
            wait_s = backoff.next_s()
            if submission.num_attempts == 0:
                log.warning(
                    "rollouts.not_submitted",
                    lease=submission.lease_id,
                    num_rollouts=len(submission.rollouts),
                    error=trouble,
                    next="trying again until the lease's deadline",
                )
            submission = replace(submission, num_attempts=submission.num_attempts + 1)
            self._on_doubt()
            with trio.move_on_after(wait_s):
                await change.wait()

    def _judged(self, submission: Submission, reply: SubmissionReply) -> None:
        lease_id, num = submission.lease_id, len(submission.rollouts)
        if reply.refusal is not None:
            self._tell(self._tally.refused_whole(reply.refusal, reply.detail, num), lease_id)
            self._on_ended(self._work.lease_lost(lease_id, f"{reply.refusal}: {reply.detail}"))
        else:
            verdicts = reply.verdicts
            if submission.num_attempts:
                # The answer to an earlier attempt got lost; its rollouts did not.
                verdicts = tuple(_taken_before(verdict) for verdict in verdicts)
            self._tell(self._tally.judged(verdicts), lease_id)
            self._tally.num_tokens += _accepted_tokens(submission.rollouts, verdicts)
            log.debug("rollouts.judged", lease=lease_id, num_rollouts=num)
            self._on_ended(self._work.submitted(lease_id, num))
        self._on_step(reply.learner_step)

    def _tell(self, notices: Sequence[RefusalNotice], lease_id: str) -> None:
        for notice in notices:
            log.warning(
                "rollouts.refused",
                reason=notice.reason.value,
                detail=notice.detail,
                num_so_far=notice.num_so_far,
                lease=lease_id,
            )


def _accepted_tokens(made: Sequence[Rollout], verdicts: Sequence[RolloutVerdict]) -> int:
    """Return how many tokens the accepted rollouts have."""
    accepted = {(v.group_id, v.sample_index) for v in verdicts if v.refusal is None}
    return sum(
        num_packed(each.tokens) for each in made if (each.group_id, each.sample_index) in accepted
    )


def _taken_before(verdict: RolloutVerdict) -> RolloutVerdict:
    if verdict.refusal is not Reason.DUPLICATE:
        return verdict
    return msgspec.structs.replace(verdict, refusal=None, detail="")
