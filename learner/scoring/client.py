"""The learner's side of the scorer: processes that are started anew whenever they are lost.

What a lost process had not answered is asked again. A completion that brings two of
them down gets no reward, and an error; so a verifier that crashes or hangs on some
input costs that input, and a few seconds of one process, never the run. Whose turn it
is, :mod:`learner.scoring.fair_shares` says.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import trio

from echo2swarm.processes.parent import Child, open_child
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import ChildError, ConfigError
from learner.scoring.fair_shares import LEARNER, FairShares
from learner.scoring.jobs import DrawJob, Request, ScoreJob
from learner.scoring.limits import ScorerLimits, num_scorers
from learner.scoring.messages import (
    CompletionToScore,
    DrawPrompts,
    OpenTask,
    Prompts,
    Reward,
    Score,
    ScoreFault,
    Scores,
    TaskOpened,
    told,
)
from learner.scoring.process_call import ProcessCall
from learner.tasks.inputs import ACCEPT, changed_inputs, differences
from protocols.ids import PeerId, short

log = structlog.get_logger()

MAX_BATCH: Final = 16
"""Completions in one call, so that prompts are not long kept waiting by scores."""

_NAME: Final = "scorer"
_NUM_DRAW_ATTEMPTS: Final = 2


@asynccontextmanager
async def open_scorer(
    task: Mapping[str, Any],
    model_dir: Path,
    *,
    seed: int,
    log_path: Path | None = None,
    limits: ScorerLimits | None = None,
    held_out_from: int | None = None,
    num_processes: int | None = None,
) -> AsyncIterator["ProcessScorer"]:
    """Run the scorer's processes for the length of the context.

    Args:
        task: the ``[task]`` table of the resolved config.
        model_dir: folder with the model's tokenizer.
        seed: decides the prompts and their order.
        log_path: where the process's output goes.
        limits: from the task's ``score_limit_s`` if None.
        held_out_from: for an evaluation, how many prompts the run trains on: these are others.
        num_processes: as the task's ``num_scorers`` says if None.

    Raises:
        ConfigError: the task's options, its data or the model's folder does not fit.
        ChildError: the process can't be started, or was lost and can't be started anew.
    """
    if limits is None:
        limits = ScorerLimits(score_s=float(task.get("score_limit_s", ScorerLimits().score_s)))
    if num_processes is None:
        num_processes = num_scorers(task.get("num_scorers"))
    scorer = ProcessScorer(
        OpenTask(dict(task), str(model_dir), seed, held_out_from),
        log_path,
        limits,
        num_processes=num_processes,
    )
    async with trio.open_nursery() as nursery:
        failed: ChildError | None = await nursery.start(scorer.run)
        if failed is None:
            try:
                yield scorer
            finally:
                nursery.cancel_scope.cancel()
    # Raised out here, so that it does not come in an exception group.
    if failed is not None:
        if failed.error == ConfigError.__name__:
            raise ConfigError(str(failed).removeprefix(f"{_NAME}: {failed.error}: "))
        raise failed


class ProcessScorer:
    """The task, as the learner sees it; any number of tasks may call it at once.

    Jobs wait in :class:`~learner.scoring.fair_shares.FairShares` until one of the processes is
    free. While one is started anew, the others go on.
    """

    def __init__(
        self,
        task: OpenTask,
        log_path: Path | None,
        limits: ScorerLimits,
        *,
        num_processes: int = 1,
    ) -> None:
        self._task = task
        self._unchecked = msgspec.structs.replace(task, is_checked=False)
        self._log_path = log_path
        self._limits = limits
        self._num_processes = num_processes
        self._num_open = 0
        self._opened: TaskOpened | None = None
        self._changed: ConfigError | None = None
        """What the task depends on that is not as it was when it was opened."""
        self._shares: FairShares[DrawJob | ScoreJob] = FairShares(limits.score_s)
        self._changes = ChangeEvent()

    @property
    def opened(self) -> TaskOpened:
        """What the task is."""
        assert self._opened is not None  # noqa: S101  # nobody has it before it is open
        return self._opened

    async def draw(self, start: int, count: int) -> Prompts:
        """Return prompts number ``start`` to ``start + count - 1`` of the run, which has no last.

        Those that can't be made are named apart.

        Raises:
            ChildError: the scorer has an error of its own.
        """
        job = DrawJob(start, count)
        if not count:
            return Prompts(())
        with self._waiting(LEARNER, [job]):
            await job.done.wait()
        if job.error is not None:
            raise job.error
        return Prompts(tuple(job.made), tuple(job.skipped))

    async def score(
        self, completions: Sequence[CompletionToScore], *, owner: str = LEARNER
    ) -> tuple[Reward, ...]:
        """Return the rewards of ``completions``, in their order.

        Whatever goes wrong with one of them is told in its own :class:`Reward`.

        Args:
            completions: what to score.
            owner: the node that they came from; it gets its share of the scorer's time.

        Raises:
            ChildError: the scorer has an error of its own.
        """
        request = Request(completions)
        places = range(len(completions))
        jobs = [
            ScoreJob(request, places[start : start + MAX_BATCH])
            for start in range(0, len(completions), MAX_BATCH)
        ]
        if not jobs:
            return ()
        if (why := self.wait_of(owner)) is not None:
            return tuple(Reward(None, "", why, ScoreFault.WAITING) for _ in completions)
        with self._waiting(owner, jobs):
            await request.done.wait()
        if request.error is not None:
            raise request.error
        return tuple(reward for reward in request.rewards if reward is not None)

    def wait_of(self, owner: str) -> str | None:
        """Return why nothing of a node is scored for a while; None if it need not wait."""
        now_s = trio.current_time()
        wait = self._shares.wait_of(owner, now_s)
        return None if wait is None else wait.why(self._limits.score_s, now_s)

    @contextmanager
    def _waiting(self, owner: str, jobs: Sequence[DrawJob | ScoreJob]) -> Iterator[None]:
        """Let jobs wait for their turn; if nobody waits for them any more, drop them."""
        for job in jobs:
            if isinstance(job, ScoreJob) and self._shares.is_full(owner):
                job.drop("too many of its completions wait to be scored")
            else:
                self._shares.add(owner, job)
        self._changes.notify()
        try:
            yield
        finally:
            for job in jobs:
                self._shares.cancel(owner, job)
                if isinstance(job, ScoreJob):
                    job.request.is_wanted = False

    async def run(self, *, task_status: trio.TaskStatus[ChildError | None]) -> None:
        """Own the processes, and start them anew for as long as they are wanted.

        Reports None when the first is ready, or why it can't be; then it is not tried again.
        """
        is_ready = trio.Event()
        failure: ChildError | ConfigError | None = None
        async with trio.open_nursery() as nursery:

            async def live() -> None:
                nonlocal failure
                is_first = not is_ready.is_set()
                if is_first:
                    failure = await self._live_once(self._task, is_ready.set)
                if isinstance(failure, ChildError) and not failure.error and not is_ready.is_set():
                    # Trying prompts out may have brought it down: that shows which when drawn.
                    log.warning("scorer.lost", error=str(failure), next="trying no prompts out")
                    failure = await self._live_once(self._unchecked, is_ready.set)
                if failure is None:
                    failure = await self._live_on(is_new=not is_first)
                nursery.cancel_scope.cancel()

            nursery.start_soon(live)
            await is_ready.wait()
            task_status.started(None)
            for _ in range(self._num_processes - 1):
                nursery.start_soon(live)
        # Raised out here, so that it does not come in an exception group.
        if failure is not None and is_ready.is_set():
            raise failure
        if isinstance(failure, ChildError):
            task_status.started(failure)

    async def _live_on(self, *, is_new: bool) -> ChildError | ConfigError:
        """Run one process after the other; returns why none can be started any more.

        Args:
            is_new: there was none before the first of them.
        """

        def tell() -> None:
            nonlocal is_new
            if not is_new:
                log.info("scorer.restarted", num_processes=self._num_open)
            is_new = False

        while True:
            failed: ChildError | None = None
            for wait_s in self._limits.reopen_waits_s:
                await trio.sleep(wait_s)
                failed = await self._live_once(self._unchecked, tell)
                if self._changed is not None:
                    return self._changed
                if failed is None:
                    break
                log.warning("scorer.start_failed", error=str(failed))
            if failed is not None and not self._num_open:
                return failed
            if failed is not None:
                await trio.sleep(self._limits.reopen_later_s)

    async def _live_once(self, message: OpenTask, on_open: Callable[[], None]) -> ChildError | None:
        """Run one process until it is lost; return what kept it from opening the task."""
        async with open_child(
            "learner.scoring.worker", name=_NAME, log_path=self._log_path
        ) as child:
            try:
                opened = await child.call(message, TaskOpened, timeout_s=self._limits.open_s)
            except ChildError as exc:
                child.kill()
                return exc
            if self._opened and (found := differences(self._opened.inputs, opened.inputs)):
                child.kill()
                self._changed = changed_inputs(
                    found, accept="echo2-learner serve --resume " + ACCEPT
                )
                return ChildError(str(self._changed))
            if self._opened is None:
                tell_skipped(opened)
            self._opened = self._opened or opened
            self._num_open += 1
            try:
                on_open()
                await self._work(child)
            finally:
                self._num_open -= 1
                self._changes.notify()
            child.kill()
        return None

    async def _work(self, child: Child) -> None:
        """Do jobs until the process is lost."""
        while True:
            change = self._changes.next_change
            if not child.is_alive:
                log.warning("scorer.lost", error="died while idle")
                return
            found = self._shares.next(num_processes=self._num_open)
            if found is None:
                await change.wait()
                continue
            owner, job = found
            try:
                if isinstance(job, DrawJob):
                    is_lost = await self._draw(child, job)
                else:
                    is_lost = await self._score(child, owner, job)
            finally:
                self._changes.notify()
            if is_lost:
                return

    async def _draw(self, child: Child, job: DrawJob) -> bool:
        """Ask for prompts; returns whether the process was lost."""
        call = ProcessCall(child, silence_s=self._limits.draw_s)
        try:
            prompts = await call.run(DrawPrompts(job.start, job.next_count()), Prompts)
        except ChildError as exc:
            if exc.error:
                job.fail(exc)
            elif not job.lost(call.num_done, exc, attempts=_NUM_DRAW_ATTEMPTS):
                self._shares.add(LEARNER, job, is_first=True)
            self._ended(LEARNER)
            if not exc.error:
                log.warning("scorer.lost", error=str(exc), pid=child.pid)
            return not exc.error
        if not job.took(prompts):
            self._shares.add(LEARNER, job, is_first=True)
        self._ended(LEARNER)
        return False

    async def _score(self, child: Child, owner: str, job: ScoreJob) -> bool:
        """Have completions scored; returns whether the process was lost."""
        limits, started_s = self._limits, trio.current_time()
        call = ProcessCall(
            child,
            silence_s=limits.score_s + limits.grace_s,
            busy_s=limits.score_s + limits.busy_grace_s,
        )
        left: list[ScoreJob] = []
        num_good = num_timeouts = 0
        error: ChildError | None = None
        try:
            rewards = (await call.run(Score(job.completions), Scores)).rewards
        except ChildError as exc:
            error = exc
            if exc.error:
                job.request.fail(exc)
            else:
                num_good, num_timeouts = call.num_done, 1
                fault = ScoreFault.TIMEOUT if call.is_too_busy else None
                why = f"took longer than {limits.score_s:g} s" if fault else str(exc)
                left = job.lost(call.num_done, why, fault)
                log.warning("scorer.lost", error=str(exc), pid=child.pid)
        else:
            num_timeouts = sum(reward.fault is ScoreFault.TIMEOUT for reward in rewards)
            num_good = len(rewards) - num_timeouts
            left = [rest] if (rest := job.took(rewards)) else []
        if job.request.is_wanted:
            for each in reversed(left):
                self._shares.add(owner, each, is_first=True)
        self._ended(
            owner,
            took_s=trio.current_time() - started_s,
            num_good=num_good,
            num_timeouts=num_timeouts,
        )
        return error is not None and not error.error

    def _ended(
        self, owner: str, *, took_s: float = 0.0, num_good: int = 0, num_timeouts: int = 0
    ) -> None:
        dropped = self._shares.ended(
            owner,
            took_s=took_s,
            num_good=num_good,
            num_timeouts=num_timeouts,
            now_s=trio.current_time(),
        )
        why = self.wait_of(owner)
        if why is not None and num_timeouts:
            log.warning("node.slow_to_score", peer=short(PeerId(owner)), why=why)
        for job in dropped:
            if isinstance(job, ScoreJob):
                job.drop(why or "")


def tell_skipped(opened: TaskOpened) -> None:
    """Log which of the prompts that were tried out can't be made."""
    if opened.num_skipped:
        log.warning(
            "prompts.skipped",
            count=opened.num_skipped,
            of=opened.num_checked,
            why="they can't be made",
            which=[told(each) for each in opened.skipped],
        )
