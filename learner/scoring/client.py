"""The learner's side of the scorer: a process that is started anew whenever it is lost.

What a lost process had not answered is asked again. A completion that brings it
down twice gets no reward, and an error; so a verifier that crashes or hangs on
some input costs that input, and a few seconds, never the run.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog
import trio

from echo2swarm.children.parent import Child, open_child
from echo2swarm.children.wire import Progress
from echo2swarm.errors import ChildError, ConfigError
from learner.run_inputs import ACCEPT, changed_inputs
from learner.scoring.messages import (
    Completion,
    DrawPrompts,
    OpenTask,
    Prompt,
    Prompts,
    Reward,
    Score,
    Scores,
    TaskOpened,
)
from learner.tasks.inputs import differences

log = structlog.get_logger()
T = TypeVar("T")

MAX_BATCH: Final = 16
"""Completions in one call, so that prompts are not long kept waiting by scores."""

_NAME: Final = "scorer"
_NUM_DRAW_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerLimits:
    """How long the scorer may take before it counts as lost."""

    open_s: float = 300.0
    """Importing and reading data can be slow."""
    draw_s: float = 120.0
    score_s: float = 10.0
    """For one completion; the scorer itself stops what takes longer, where that is possible."""
    grace_s: float = 10.0
    """Beyond ``score_s`` without a sign of life: a busy machine is not a hanging verifier."""
    reopen_waits_s: tuple[float, ...] = (0.0, 1.0, 5.0)
    """Pauses before the attempts to start it anew; after the last it is given up."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Job(Generic[T]):
    message: msgspec.Struct
    kind: type[T]
    silence_s: float
    """The scorer is lost if neither answer nor progress comes for this long."""
    done: trio.Event = field(default_factory=trio.Event)
    result: T | None = None
    error: ChildError | None = None
    num_done: int = 0
    """How far it had come."""


@asynccontextmanager
async def open_scorer(
    task: Mapping[str, Any],
    model_dir: Path,
    *,
    seed: int,
    log_path: Path | None = None,
    limits: ScorerLimits | None = None,
    held_out_from: int | None = None,
) -> AsyncIterator["ProcessScorer"]:
    """Run the scorer process for the length of the context.

    Args:
        task: the ``[task]`` table of the resolved config.
        model_dir: folder with the model's tokenizer.
        seed: decides the prompts and their order.
        log_path: where the process's output goes.
        limits: from the task's ``score_limit_s`` if None.
        held_out_from: for an evaluation, how many prompts the run trains on: these are others.

    Raises:
        ConfigError: the task's options, its data or the model's folder does not fit.
        ChildError: the process can't be started, or was lost and can't be started anew.
    """
    if limits is None:
        limits = ScorerLimits(score_s=float(task.get("score_limit_s", ScorerLimits().score_s)))
    scorer = ProcessScorer(
        OpenTask(dict(task), str(model_dir), seed, held_out_from), log_path, limits
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

    Hands jobs to the task that owns the process, one at a time, and waits for each.
    """

    def __init__(self, task: OpenTask, log_path: Path | None, limits: ScorerLimits) -> None:
        self._task = task
        self._log_path = log_path
        self._limits = limits
        self._opened: TaskOpened | None = None
        self._changed: ConfigError | None = None
        """What the task depends on that is not as it was when it was opened."""
        self._send, self._receive = trio.open_memory_channel[_Job[Any]](0)
        self._waiting: _Job[Any] | None = None

    @property
    def opened(self) -> TaskOpened:
        """What the task is."""
        assert self._opened is not None  # noqa: S101  # nobody has it before it is open
        return self._opened

    async def draw(self, start: int, count: int) -> tuple[Prompt, ...]:
        """Return prompts number ``start`` to ``start + count - 1`` of the run, which has no last.

        Raises:
            ChildError: the task can't make them.
        """
        message = DrawPrompts(start, count)
        for _ in range(_NUM_DRAW_ATTEMPTS - 1):
            try:
                return (await self._do(message, Prompts, silence_s=self._limits.draw_s)).prompts
            except ChildError as exc:
                if exc.error:
                    raise
        return (await self._do(message, Prompts, silence_s=self._limits.draw_s)).prompts

    async def score(self, completions: Sequence[Completion]) -> tuple[Reward, ...]:
        """Return the rewards of ``completions``, in their order.

        Whatever goes wrong with one of them is told in its own :class:`Reward`.

        Raises:
            ChildError: the scorer has an error of its own.
        """
        rewards: list[Reward] = []
        for start in range(0, len(completions), MAX_BATCH):
            rewards += await self._score_batch(completions[start : start + MAX_BATCH])
        return tuple(rewards)

    async def _score_batch(self, batch: Sequence[Completion]) -> list[Reward]:
        """Score a batch; if the process is lost over it, find out over which completion."""
        if not batch:
            return []
        job = self._score_job(batch)
        try:
            return list((await self._wait(job)).rewards)
        except ChildError as exc:
            if exc.error:
                raise
        suspect = min(job.num_done, len(batch) - 1)
        return [
            *await self._score_batch(batch[:suspect]),
            await self._score_suspect(batch[suspect]),
            *await self._score_batch(batch[suspect + 1 :]),
        ]

    async def _score_suspect(self, completion: Completion) -> Reward:
        """Score a completion alone that the process was lost over; that need not be its fault."""
        try:
            return (await self._wait(self._score_job([completion]))).rewards[0]
        except ChildError as exc:
            if exc.error:
                raise
            log.warning("completion.unscorable", prompt=completion.index, error=str(exc))
            return Reward(None, "", str(exc)[:500])

    def _score_job(self, batch: Sequence[Completion]) -> _Job[Scores]:
        silence_s = self._limits.score_s + self._limits.grace_s
        return _Job(message=Score(tuple(batch)), kind=Scores, silence_s=silence_s)

    async def _do(self, message: msgspec.Struct, kind: type[T], *, silence_s: float) -> T:
        return await self._wait(_Job(message=message, kind=kind, silence_s=silence_s))

    async def _wait(self, job: _Job[T]) -> T:
        await self._send.send(job)
        await job.done.wait()
        if job.error is not None:
            raise job.error
        assert job.result is not None  # noqa: S101  # a job is done with one or the other
        return job.result

    async def run(self, *, task_status: trio.TaskStatus[ChildError | None]) -> None:
        """Own the process, and start it anew for as long as it is wanted.

        Reports None when it is ready, or why it can't be; then it is not tried again.
        """
        failed = await self._live_once(lambda: task_status.started(None))
        if self._opened is None:
            assert failed is not None  # noqa: S101  # it was never open
            task_status.started(failed)
            return
        while True:
            for wait_s in self._limits.reopen_waits_s:
                await trio.sleep(wait_s)
                failed = await self._live_once(lambda: log.info("scorer.restarted"))
                if self._changed is not None:
                    raise self._changed
                if failed is None:
                    break
                log.warning("scorer.start_failed", error=str(failed))
            if failed is not None:
                raise failed

    async def _live_once(self, on_open: Callable[[], None]) -> ChildError | None:
        """Run one process until it is lost; return what kept it from opening the task."""
        async with open_child(
            "learner.scoring.worker", name=_NAME, log_path=self._log_path
        ) as child:
            try:
                opened = await child.call(self._task, TaskOpened, timeout_s=self._limits.open_s)
            except ChildError as exc:
                child.kill()
                return exc
            if self._opened and (found := differences(self._opened.inputs, opened.inputs)):
                child.kill()
                self._changed = changed_inputs(
                    found, accept=f"echo2-learner serve --resume {ACCEPT}"
                )
                return ChildError(str(self._changed))
            self._opened = self._opened or opened
            on_open()
            await self._work(child)
            child.kill()
        return None

    async def _work(self, child: Child) -> None:
        """Do jobs until the process is lost."""
        while True:
            job = self._waiting or await self._receive.receive()
            self._waiting = job
            if not child.is_alive:  # it died while idle; the job is for the next one
                log.warning("scorer.lost", error="died while idle")
                return
            self._waiting = None
            try:
                job.result = await self._call(child, job)
            except ChildError as exc:
                job.error = exc
            job.done.set()
            if job.error is not None and not job.error.error:
                log.warning("scorer.lost", error=str(job.error), pid=child.pid)
                return

    async def _call(self, child: Child, job: _Job[T]) -> T:
        with trio.CancelScope(deadline=trio.current_time() + job.silence_s) as scope:

            def on_progress(progress: Progress) -> None:
                job.num_done = round(progress.done)
                scope.deadline = trio.current_time() + job.silence_s

            return await child.call(
                job.message, job.kind, timeout_s=math.inf, on_progress=on_progress
            )
        what = type(job.message).__name__
        raise ChildError(f"{_NAME} gave no sign of life for {job.silence_s:g} s over {what}")
