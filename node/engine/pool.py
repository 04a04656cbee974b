"""Several engines side by side as one: each call goes to those that have least to do.

::

    open_engines
    +- open_engine      one child each: started again when it dies
    +- open_engine

The pool samples as long as one engine lives, and has the version that all engines have that
live: one that was started again is given it before it takes part.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio

from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError
from node.engine.base import (
    EngineBrokenError,
    EngineDownError,
    EngineEvent,
    EngineExited,
    EngineReady,
    EngineWeakened,
    LocalEngine,
    PolicyFiles,
)
from node.engine.messages import Description, Generated
from node.engine.process import EngineSpec, ProcessEngine, open_engine
from node.engine.shares import shares
from protocols.ids import PolicyVersion
from protocols.leases import LeasedGroup
from protocols.sampling import SamplingParams

log = structlog.get_logger()


@asynccontextmanager
async def open_engines(
    specs: Sequence[EngineSpec], *, log_path: Path, on_event: Callable[[EngineEvent], None]
) -> AsyncIterator[LocalEngine]:
    """Run engines for the length of the context; they start meanwhile.

    Args:
        specs: one for each engine, all of one kind.
        log_path: where the child's output is appended; of several, each has its number in the
            file's name.
        on_event: told, from the event loop, whenever one is ready or has died.

    Raises:
        EngineBrokenError: none of them can work here; this cancels the context's body.
    """
    if len(specs) == 1:
        async with open_engine(specs[0], log_path=log_path, on_event=on_event) as engine:
            yield engine
        return
    pool = EnginePool(specs, on_event)
    async with trio.open_nursery() as nursery:
        for place, spec in enumerate(specs):
            path = log_path.with_stem(f"{log_path.stem}-{spec.number}")
            await nursery.start(pool._run_member, place, spec, path)
        yield pool
        nursery.cancel_scope.cancel()


class _Member:
    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.num_in_hand = 0
        """Completions that it was asked for and has not answered."""


class EnginePool:
    """Implements :class:`node.engine.base.RolloutEngine`; made by :func:`open_engines`."""

    def __init__(
        self, specs: Sequence[EngineSpec], on_event: Callable[[EngineEvent], None]
    ) -> None:
        self._num = len(specs)
        self._is_continuous = specs[0].is_continuous
        self._kind = specs[0].kind
        self._on_event = on_event
        self._members: list[_Member] = []
        self._num_broken = 0

    @property
    def applied_version(self) -> PolicyVersion | None:
        """What all that live sample with; the oldest, should one have refused a newer one."""
        versions = [member.engine.applied_version for member in self._living()]
        known = [version for version in versions if version is not None]
        return min(known) if known and len(known) == len(versions) else None

    @property
    def num_restarts(self) -> int:
        """How often one of them was started again."""
        return sum(member.engine.num_restarts for member in self._members)

    @property
    def is_continuous(self) -> bool:
        """Whether calls may overlap."""
        return self._is_continuous

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the children that answer now."""
        return tuple(pid for member in self._members for pid in member.engine.pids)

    async def load_policy(self, policy: PolicyFiles) -> float:
        """Apply a version to all that lack it, and return how many seconds the slowest took."""
        members = [m for m in self._living() if m.engine.applied_version != policy.version]
        if not members:
            if self._living():
                return 0.0
            raise EngineDownError(f"no engine {self._kind} is running; they are being started")
        seconds: list[float] = []
        errors: list[ChildError] = []

        async def load(member: _Member) -> None:
            try:
                seconds.append(await member.engine.load_policy(policy))
            except ChildError as exc:
                errors.append(exc)

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(load, member)
        # One that died is given the version when it is back; one that refused it has the old one.
        refusals = [exc for exc in errors if not isinstance(exc, EngineDownError)]
        if refusals or not seconds:
            raise (refusals or errors)[0]
        return max(seconds)

    async def generate(
        self,
        groups: Sequence[LeasedGroup],
        sampling: SamplingParams,
        *,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> Generated:
        """Return one completion per sample of ``groups``."""
        started_s = trio.current_time()
        # An engine that batches all calls together takes whole calls.
        parts = [tuple(groups)]
        if not self._is_continuous:
            parts = shares(groups, max(1, len(self._able())))
        answers: list[Generated] = []
        errors: list[ChildError] = []

        async def sample(part: tuple[LeasedGroup, ...]) -> None:
            try:
                answers.append(await self._sample(part, sampling, on_progress))
            except ChildError as exc:
                errors.append(exc)

        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(sample, part)
        if errors:
            raise errors[0]
        return Generated(
            completions=tuple(each for answer in answers for each in answer.completions),
            seconds=trio.current_time() - started_s,
        )

    async def _sample(
        self,
        groups: tuple[LeasedGroup, ...],
        sampling: SamplingParams,
        on_progress: Callable[[CallProgress], None] | None,
    ) -> Generated:
        """Have one engine sample; if it dies of it, another, as long as one has not been tried."""
        num_completions = sum(len(group.samples) for group in groups)
        tried: set[_Member] = set()
        lost = EngineDownError(f"no engine {self._kind} has a policy")
        while able := [member for member in self._able() if member not in tried]:
            member = min(able, key=lambda each: each.num_in_hand)
            tried.add(member)
            member.num_in_hand += num_completions
            try:
                return await member.engine.generate(groups, sampling, on_progress=on_progress)
            except EngineDownError as exc:
                lost = exc
            finally:
                member.num_in_hand -= num_completions
        raise lost

    def _living(self) -> list[_Member]:
        return [member for member in self._members if member.engine.is_running]

    def _able(self) -> list[_Member]:
        """Return those that sample with the version that the pool is said to have."""
        version = self.applied_version
        if version is None:
            return []
        return [m for m in self._living() if m.engine.applied_version == version]

    async def _run_member(
        self,
        place: int,
        spec: EngineSpec,
        log_path: Path,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        try:
            on_event = partial(self._happened, place)
            async with open_engine(spec, log_path=log_path, on_event=on_event) as engine:
                self._members.append(_Member(engine))
                task_status.started()
                await trio.sleep_forever()
        except* EngineBrokenError as group:
            error = _only(group)
            self._num_broken += 1
            if self._num_broken == self._num:
                raise EngineBrokenError(str(error)) from group
            log.error("engine.given_up", number=spec.number, why=str(error))

    def _happened(self, place: int, event: EngineEvent) -> None:
        match event:
            case EngineReady(description):
                self._on_event(EngineReady(self._described(description)))
            case EngineExited(why) if self._living():
                self._on_event(EngineWeakened(f"engine {place + 1} of {self._num}: {why}"))
            case _:
                self._on_event(event)

    def _described(self, one: Description) -> Description:
        device = f"{self._num} x {one.device}"
        return Description(engine=one.engine, device=device, version=one.version)


def _only(group: BaseExceptionGroup[EngineBrokenError]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
