"""Asks the learner for leases, and tells it which ones will not be finished."""

import random
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import structlog
import trio

from echo2swarm.network.backoff import Backoff
from echo2swarm.scheduling.workload import Ending, GiveBack, Workload
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import NetworkError
from node.rollouts.learner_client import LearnerClient
from protocols.errors import RemoteProtocolError
from protocols.ids import PolicyVersion
from protocols.leases import LeaseReply
from protocols.reasons import Reason

log = structlog.get_logger()

MAX_GIVEN_BACK: Final = 64
"""Waiting to be told. More are left to the learner's own time limit."""
MIN_GAP_S: Final = 0.2
MAX_RETRY_S: Final = 20.0


class LeaseRequester:
    """Keeps the workload supplied.

    Args:
        calls: to the learner.
        work: says when to ask, and gets what is given.
        changes: notified when there may be a reason to ask.
        max_completions: to ask for at once.
        applied_version: what the engine samples with now.
        on_ended: gets leases that ended by this.
        on_step: told the learner's step.
        on_doubt: the learner may not know us; it should get a heartbeat.
        wanted: notified when the learner (again) wants work: no reason to wait any longer.
        rng: for jitter.
    """

    def __init__(
        self,
        calls: LearnerClient,
        work: Workload,
        changes: ChangeEvent,
        *,
        max_completions: int,
        applied_version: Callable[[], PolicyVersion | None],
        on_ended: Callable[[Sequence[Ending]], None],
        on_step: Callable[[int], None],
        on_doubt: Callable[[], None],
        wanted: ChangeEvent,
        rng: random.Random,
    ) -> None:
        self._calls = calls
        self._work = work
        self._changes = changes
        self._max_completions = max_completions
        self._applied_version = applied_version
        self._on_ended = on_ended
        self._on_step = on_step
        self._on_doubt = on_doubt
        self._wanted = wanted
        self._backoff = Backoff(rng, cap_s=MAX_RETRY_S)
        self._returns, self._to_return = trio.open_memory_channel[GiveBack](MAX_GIVEN_BACK)
        self._num_returning = 0

    def give_back(self, ending: GiveBack) -> None:
        """Tell the learner soon that no more will come of a lease."""
        try:
            self._returns.send_nowait(ending)
        except trio.WouldBlock:
            log.warning("lease.not_handed_back", lease=ending.lease_id, error="too many at once")
        else:
            self._num_returning += 1

    async def until_all_given_back(self) -> None:
        """Return when the learner has been told of all."""
        while self._num_returning:
            await self._changes.next_change.wait()

    async def run(self) -> None:
        """Ask and give back until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_asking, nursery)
            nursery.start_soon(self._keep_returning)

    async def _keep_asking(self, nursery: trio.Nursery) -> NoReturn:
        while True:
            change = self._changes.next_change
            version = self._applied_version()
            if version is not None and self._work.may_ask(version):
                self._work.asked(version)
                nursery.start_soon(self._ask, version)
            else:
                await change.wait()

    async def _ask(self, version: PolicyVersion) -> None:
        change = self._wanted.next_change
        try:
            reply = await self._calls.ask_for_lease(version, max_completions=self._max_completions)
        except (NetworkError, RemoteProtocolError) as exc:
            log.debug("lease.not_asked", error=str(exc))
            self._on_doubt()
            with trio.move_on_after(self._backoff.next_s()):
                await change.wait()
        else:
            self._backoff.reset()
            await self._take(reply)
        self._work.answered(version)
        self._changes.notify()

    async def _take(self, reply: LeaseReply) -> None:
        self._on_step(reply.learner_step)
        lease = reply.lease
        if lease is not None:
            log.debug(
                "lease.taken",
                lease=lease.lease_id,
                num_completions=lease.num_completions,
                min_version=lease.min_version,
                deadline_step=lease.deadline_step,
            )
            self._on_ended(self._work.add(lease))
            return
        if reply.refusal is not None:
            log.info("lease.refused", reason=reply.refusal.value, why=reply.why)
            if reply.refusal is Reason.NOT_A_MEMBER:
                self._on_doubt()
        else:
            log.debug("lease.none", why=reply.why)
        await trio.sleep(max(MIN_GAP_S, reply.retry_after_s))

    async def _keep_returning(self) -> None:
        async for ending in self._to_return:
            try:
                await self._calls.give_back(ending.lease_id, ending.why)
            except (NetworkError, RemoteProtocolError) as exc:
                # The learner will take it back when its time is up.
                log.info("lease.not_handed_back", lease=ending.lease_id, error=str(exc))
            self._num_returning -= 1
            self._changes.notify()
