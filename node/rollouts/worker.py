"""While active: leases in, rollouts out; and always: the newest policy into the engine.

The I/O around :class:`echo2swarm.scheduling.workload.Workload`. One task keeps the engine busy,
with one batch after the other, or with all leases in hand at once where the engine batches by
itself;
:mod:`node.rollouts.lease_requests` asks for leases and hands them back,
:mod:`node.rollouts.submitter` submits. They share the workload, and a change event wakes them.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn, assert_never

import structlog
import trio

from echo2swarm.network.backoff import Backoff
from echo2swarm.scheduling.workload import (
    MAX_LEASES,
    MAX_LEASES_CONTINUOUS,
    MAX_UNSENT,
    Apply,
    Ending,
    Forget,
    GiveBack,
    LeaseDone,
    SampleParts,
    Workload,
)
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import ChildError, StoreError
from node.engine.base import EngineDownError, EngineLostError, PolicyFiles, RolloutEngine
from node.rollouts.calibration import Calibration
from node.rollouts.drain import Drain
from node.rollouts.engine_speed import EngineSpeed
from node.rollouts.learner_client import LearnerClient, completions_of, in_submissions, rollout_of
from node.rollouts.lease_requests import LeaseRequester
from node.rollouts.ports import Policies
from node.rollouts.progress_log import log_progress
from node.rollouts.submitter import Submission, Submitter
from node.rollouts.tally import RefusalTally
from protocols.heartbeat import TroubleKind
from protocols.ids import PolicyVersion
from protocols.packed import num_packed

log = structlog.get_logger()

PIN_RETRY_S: Final = 0.2
MAX_RETRY_S: Final = 20.0
RETRY_REFUSED_S: Final = 60.0
"""After this time a version that could not be applied is tried again, then after twice that, ..."""
MAX_RETRY_REFUSED_S: Final = 1800.0
KEEP_S: Final = 2.0
"""After a lease for one version the next one for it arrives within this time, or there is none."""
CALIBRATE_AFTER_S: Final = 3.0
"""A node that stands by for so long, with an engine that could work, times it once."""


class Worker:
    """One node's work.

    Args:
        calls: to the learner.
        engine: what samples.
        policies: the versions on this machine.
        max_batch: completions to sample at once.
        on_applied: told each version the engine has applied.
        on_drained: told once nothing is in hand any more, after :meth:`drain`.
        on_doubt: the learner may not know us; it should get a heartbeat.
        on_calibrated: the engine was timed; the learner should hear of it.
        is_learner_silent: whether the learner did not answer the last call.
        on_trouble: the engine failed; the learner should hear of it.
        rng: for jitter.
    """

    def __init__(
        self,
        calls: LearnerClient,
        engine: RolloutEngine,
        policies: Policies,
        *,
        max_batch: int,
        on_applied: Callable[[PolicyVersion], None],
        on_drained: Callable[[], None],
        on_doubt: Callable[[], None],
        on_calibrated: Callable[[], None],
        is_learner_silent: Callable[[], bool] = lambda: False,
        on_trouble: Callable[[], None] = lambda: None,
        rng: random.Random,
    ) -> None:
        self._on_calibrated = on_calibrated
        self._on_trouble = on_trouble
        self._is_resting = False
        self._speed = EngineSpeed()
        self._applying: PolicyVersion | None = None
        self._errors: dict[TroubleKind, str] = {}
        self._calls = calls
        self._engine = engine
        self._policies = policies
        self._on_applied = on_applied
        self._on_doubt = on_doubt
        self._rng = rng
        self._calibration = Calibration(engine, max_batch=max_batch)
        self._idle_since_s: float | None = None
        self._keep_until_s: float | None = None
        self._work = Workload(
            max_leases=MAX_LEASES_CONTINUOUS if engine.is_continuous else MAX_LEASES,
            max_batch=max_batch,
            is_continuous=engine.is_continuous,
        )
        self._backoff = Backoff(rng, cap_s=MAX_RETRY_S)
        self._rest_s = 0.0
        self._changes = ChangeEvent()
        self._wanted = ChangeEvent()
        self._tally = RefusalTally()
        self._has_refused = trio.Event()
        self._retry_refused_s = RETRY_REFUSED_S
        self._outbox, self._unsent = trio.open_memory_channel[Submission](MAX_UNSENT)
        self._keeper = LeaseRequester(
            calls,
            self._work,
            self._changes,
            max_completions=max_batch,
            applied_version=lambda: engine.applied_version,
            on_ended=self._ended,
            on_step=self.step_heard,
            on_doubt=on_doubt,
            wanted=self._wanted,
            rng=rng,
        )
        self._drain = Drain(
            self._work,
            self._changes,
            self._keeper,
            on_ended=self._ended,
            on_drained=on_drained,
            is_learner_silent=is_learner_silent,
        )

    @property
    def num_rollouts_in_hand(self) -> int:
        """Completions leased to this node and not yet judged."""
        return self._work.num_rollouts

    @property
    def tally(self) -> RefusalTally:
        """What became of this node's rollouts."""
        return self._tally

    @property
    def calibrated_tokens_per_s(self) -> float | None:
        """What a trial of the engine came to; None if there was none yet, or no need of one."""
        return self._calibration.tokens_per_s

    @property
    def applying(self) -> PolicyVersion | None:
        """The version that the engine is loading now."""
        return self._applying

    @property
    def errors(self) -> Mapping[TroubleKind, str]:
        """What the engine can't do, and did not do since, with its words."""
        return self._errors

    @property
    def speed(self) -> EngineSpeed:
        """What the engine does."""
        return self._speed

    # Told by others, from the event loop.

    def rest(self, *, is_wanted: bool) -> None:
        """Give the engine nothing from now on, no version either; or do again."""
        self._is_resting = is_wanted
        self._changes.notify()

    def pause(self) -> None:
        """Ask for no more, finish what the engine has begun, give back the rest."""
        self.stop_taking_work()
        self._ended(self._work.hand_back_unbegun("this node is paused by its owner"))

    def take_work(self) -> None:
        """Ask for leases from now on."""
        self._work.take(is_wanted=True)
        self._wanted.notify()
        self._changes.notify()

    def stop_taking_work(self) -> None:
        """Ask for no more; what is in hand is finished."""
        self._work.take(is_wanted=False)
        self._changes.notify()

    def hand_back(self, why: str) -> None:
        """Give back everything that is not sampled."""
        self._ended(self._work.hand_back(why))

    def drain(self) -> None:
        """Ask for no more, finish what is begun, give back the rest."""
        self.stop_taking_work()
        self._ended(self._work.hand_back("this node is leaving", only_not_begun=True))
        self._drain.begin()

    def step_heard(self, step: int) -> None:
        """Take in the learner's step."""
        self._ended(self._work.step_heard(step))

    def engine_changed(self) -> None:
        """Look again at what the engine can do."""
        self._changes.notify()

    # Running.

    async def run(self) -> None:
        """Work until cancelled."""
        submitter = Submitter(
            self._calls,
            self._work,
            self._tally,
            on_ended=self._ended,
            on_step=self.step_heard,
            on_doubt=self._on_doubt,
            wanted=self._wanted,
            rng=self._rng,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keeper.run)
            nursery.start_soon(self._keep_engine_busy)
            nursery.start_soon(submitter.run, self._unsent)
            nursery.start_soon(self._watch_versions)
            nursery.start_soon(self._drain.run)
            nursery.start_soon(self._try_refused_again)
            nursery.start_soon(log_progress, self._tally, self._engine)

    def _ended(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            match ending:
                case LeaseDone(lease_id):
                    log.debug("lease.done", lease=lease_id)
                case Forget(lease_id, why):
                    log.warning("lease.lost", lease=lease_id, why=why)
                case GiveBack(lease_id, why):
                    log.info("lease.handed_back", lease=lease_id, why=why)
                    self._keeper.give_back(ending)
                case _:
                    assert_never(ending)
        if endings:
            self._changes.notify()

    # The engine.

    async def _watch_versions(self) -> NoReturn:
        version: PolicyVersion | None = None
        while True:
            version = (await self._policies.next_version(version)).version
            self._changes.notify()

    async def _keep_engine_busy(self) -> NoReturn:
        async with trio.open_nursery() as nursery:
            while True:
                rest_s, self._rest_s = self._rest_s, 0.0
                await trio.sleep(rest_s)
                change = self._changes.next_change
                if self._is_resting:
                    await change.wait()
                    continue
                self._ended(self._work.passed(self._engine.applied_version))
                if not self._work.is_kept(self._engine.applied_version):
                    self._keep_until_s = None
                job = self._work.next_job(self._engine.applied_version, self._policies.versions)
                match job:
                    case None:
                        await self._idle(change)
                    case Apply() if self._work.is_kept(self._engine.applied_version):
                        await self._keep(change)
                    case Apply(version):
                        await self._do(partial(self._apply, version), change)
                    case SampleParts():
                        sample = partial(self._do, partial(self._sample, job), change)
                        if self._engine.is_continuous:
                            nursery.start_soon(sample)
                        else:
                            await sample()
                    case _:
                        assert_never(job)

    async def _do(self, job: Callable[[], Awaitable[None]], change: trio.Event) -> None:
        try:
            await job()
        except EngineDownError as exc:
            log.debug("engine.down", error=str(exc))
            await change.wait()
        except ChildError as exc:
            self._rest_s = self._backoff.next_s()
            self._on_trouble()
            log.error("engine.refused", error=str(exc), retry_in_s=round(self._rest_s, 1))
        self._changes.notify()

    async def _keep(self, change: trio.Event) -> None:
        """Wait a moment before a newer version is applied: there may be more work of this one."""
        self._keep_until_s = self._keep_until_s or trio.current_time() + KEEP_S
        with trio.move_on_at(self._keep_until_s) as scope:
            await change.wait()
        if scope.cancelled_caught:
            self._keep_until_s = None
            self._work.let_go()

    async def _idle(self, change: trio.Event) -> None:
        """Wait for something to do; time the engine if there has been nothing for a while."""
        held = self._policies.held
        has_work = self._work.is_taking or self._work.num_leases
        can_work = self._engine.applied_version is not None
        if self._calibration.is_done or has_work or not can_work or held is None:
            self._idle_since_s = None
            await change.wait()
            return
        self._idle_since_s = self._idle_since_s or trio.current_time()
        with trio.move_on_at(self._idle_since_s + CALIBRATE_AFTER_S) as scope:
            await change.wait()
        if scope.cancelled_caught:
            await self._calibration.run(held.manifest.sampling)
            self._on_calibrated()

    async def _apply(self, version: PolicyVersion) -> None:
        self._applying = version
        try:
            await self._load(version)
        finally:
            self._applying = None

    async def _load(self, version: PolicyVersion) -> None:
        try:
            with self._policies.pin(version) as held:
                files = PolicyFiles(
                    version=version, weights_dir=held.weights, assets_dir=held.assets
                )
                seconds = await self._engine.load_policy(files)
        except StoreError as exc:
            log.warning("policy.gone", version=version, error=str(exc))
            await trio.sleep(PIN_RETRY_S)
            return
        except EngineLostError as exc:
            if self._work.died_applying(version):
                self._refused(version, "going on with an older version", str(exc))
            raise
        except EngineDownError:
            raise
        except ChildError as exc:
            self._work.refuse_version(version)
            self._refused(version, "waiting for a newer version", str(exc))
            raise
        self._errors.pop(TroubleKind.APPLY, None)
        self._work.applied(version)
        if version == max(self._policies.versions, default=version):
            self._retry_refused_s = RETRY_REFUSED_S
        log.info("policy.applied", version=version, took_s=round(seconds, 3))
        self._on_applied(version)
        self._changes.notify()

    def _refused(self, version: PolicyVersion, what_next: str, error: str) -> None:
        self._errors[TroubleKind.APPLY] = f"version {version}: {error}"
        self._has_refused.set()
        log.error(
            "policy.refused",
            version=version,
            kept=self._engine.applied_version,
            next=f"{what_next}; it is tried again in {self._retry_refused_s:g} s",
        )

    async def _try_refused_again(self) -> NoReturn:
        """Try versions again that could not be applied: there may never be a newer one."""
        while True:
            await self._has_refused.wait()
            self._has_refused = trio.Event()
            rest_s, self._retry_refused_s = (
                self._retry_refused_s,
                min(2 * self._retry_refused_s, MAX_RETRY_REFUSED_S),
            )
            await trio.sleep(rest_s)
            self._work.try_again()
            self._changes.notify()

    async def _sample(self, job: SampleParts) -> None:
        groups = [group for part in job.parts for group in part.groups]
        started_s = trio.current_time()
        num_wanted = sum(part.num_completions for part in job.parts)
        num_tokens = 0
        self._speed.began(num_wanted, started_s)
        try:
            generated = await self._engine.generate(groups, job.sampling)
            num_tokens = sum(num_packed(each.tokens) for each in generated.completions)
        except ChildError as exc:
            for part in job.parts:
                self._ended(self._work.not_sampled(part.lease_id, f"the engine says: {exc}"))
            if not isinstance(exc, EngineDownError):
                self._errors[TroubleKind.SAMPLE] = str(exc)
            raise
        finally:
            self._speed.ended(num_wanted, num_tokens, trio.current_time())
        self._errors.pop(TroubleKind.SAMPLE, None)
        self._backoff.reset()
        took_s = trio.current_time() - started_s
        log.debug("work.sampled", num_completions=len(generated.completions), took_s=took_s)
        for part in job.parts:
            made = completions_of(part, generated.completions)
            if len(made) != part.num_completions:
                why = f"the engine made {len(made)} of {part.num_completions} completions"
                self._ended(self._work.not_sampled(part.lease_id, why))
            elif self._work.sampled(part):
                for rollouts in in_submissions([rollout_of(each) for each in made]):
                    await self._outbox.send(
                        Submission(lease_id=part.lease_id, rollouts=rollouts, generated_in_s=took_s)
                    )
