"""What a node asks of the learner beside heartbeats: work, taking it back, and verdicts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from echo2swarm.network.base import Network
from echo2swarm.network.rpc import call_remote
from echo2swarm.scheduling.workload import LeasePart
from node.engine.messages import Completion
from protocols import leases, rollouts
from protocols.ids import PeerId, PolicyVersion
from protocols.leases import LeaseReply, LeaseRequest, LeaseReturn
from protocols.rollouts import Rollout, RolloutSubmission, SubmissionReply

WAIT_S: Final = 15.0
"""How long the learner may hold a question when it has no work."""
MAX_PER_SUBMISSION: Final = 512
"""Verdicts come back soon, and their message stays small."""
_ROLLOUT_OVERHEAD_BYTES: Final = 256
"""More than a rollout's fields beside its arrays take."""


class LearnerClient:
    """The calls of one session. All raise ``NetworkError`` and ``RemoteProtocolError``."""

    def __init__(self, network: Network, *, learner: PeerId, run_id: str, session_id: str) -> None:
        self._network = network
        self._learner = learner
        self._run_id = run_id
        self._session_id = session_id

    async def ask_for_lease(
        self, applied_version: PolicyVersion, *, max_completions: int
    ) -> LeaseReply:
        """Ask for work; the answer may take a while."""
        request = LeaseRequest(
            run_id=self._run_id,
            session_id=self._session_id,
            applied_version=applied_version,
            max_completions=max_completions,
            wait_s=WAIT_S,
        )
        timeout_s = request.wait_s + leases.CALL.timeout_s
        return await call_remote(
            self._network, self._learner, leases.CALL, request, timeout_s=timeout_s
        )

    async def give_back(self, lease_id: str, why: str) -> LeaseReply:
        """Tell that no more will come of a lease."""
        request = LeaseReturn(
            run_id=self._run_id, session_id=self._session_id, lease_id=lease_id, why=why[:200]
        )
        return await call_remote(self._network, self._learner, leases.CALL, request)

    async def submit(
        self, lease_id: str, made: Sequence[Rollout], *, generated_in_s: float
    ) -> SubmissionReply:
        """Hand in rollouts, and return the learner's verdicts."""
        submission = RolloutSubmission(
            run_id=self._run_id,
            session_id=self._session_id,
            lease_id=lease_id,
            rollouts=tuple(made),
            generated_in_s=generated_in_s,
        )
        return await call_remote(self._network, self._learner, rollouts.CALL, submission)


def rollout_of(completion: Completion) -> Rollout:
    """Return an engine's completion as the wire has it."""
    return Rollout(
        group_id=completion.group_id,
        sample_index=completion.sample_index,
        oldest_version=completion.oldest_version,
        newest_version=completion.newest_version,
        tokens=completion.tokens,
        logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
    )


def in_submissions(
    made: Sequence[Rollout],
    *,
    max_bytes: int = rollouts.MAX_REQUEST_BYTES - 4096,
    max_rollouts: int = MAX_PER_SUBMISSION,
) -> Iterator[tuple[Rollout, ...]]:
    """Yield the rollouts in order, so many at a time as one submission may hold."""
    batch: list[Rollout] = []
    size_bytes = 0
    for rollout in made:
        num_bytes = len(rollout.tokens) + len(rollout.logprobs) + _ROLLOUT_OVERHEAD_BYTES
        if batch and (size_bytes + num_bytes > max_bytes or len(batch) >= max_rollouts):
            yield tuple(batch)
            batch, size_bytes = [], 0
        batch.append(rollout)
        size_bytes += num_bytes
    if batch:
        yield tuple(batch)


def completions_of(part: LeasePart, completions: Iterable[Completion]) -> list[Completion]:
    """Return the completions of a part, one per sample, in its order."""
    made = {(each.group_id, each.sample_index): each for each in completions}
    wanted = [(group.group_id, sample.index) for group in part.groups for sample in group.samples]
    return [made[key] for key in wanted if key in made]
