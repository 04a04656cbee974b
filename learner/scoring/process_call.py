"""One call to a scorer process, under watch: is it still computing what it may?"""

import math
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import trio

from echo2swarm.processes.parent import Child
from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError
from learner.scoring.cpu_time import cpu_s_of

T = TypeVar("T")

_LOOK_S: Final = 0.25


@dataclass(slots=True, kw_only=True)
class ProcessCall:
    """A call that fails if neither answer nor progress comes for too long.

    Args:
        child: the process.
        silence_s: how long at most.
        busy_s: how long if it computed for as long: then it is not the machine that is slow.
    """

    child: Child = field(kw_only=False)
    silence_s: float
    busy_s: float = math.inf
    num_done: int = 0
    """How far it had come."""
    is_too_busy: bool = False
    """Whether it failed after ``busy_s``."""
    _since_s: float = 0.0
    _cpu_s: float | None = None

    async def run(self, message: msgspec.Struct, kind: type[T]) -> T:
        """Return the answer.

        Raises:
            ChildError: the process has an error of its own, or counts as lost.
        """
        self._mark()
        async with trio.open_nursery() as nursery:
            result: T | ChildError | None = None

            async def call() -> None:
                nonlocal result
                try:
                    result = await self.child.call(
                        message, kind, timeout_s=math.inf, on_progress=self._on_progress
                    )
                except ChildError as exc:
                    result = exc
                nursery.cancel_scope.cancel()

            nursery.start_soon(call)
            await self._watch()
            nursery.cancel_scope.cancel()
        if isinstance(result, ChildError):
            raise result
        if result is None:
            what = type(message).__name__
            silent_s = trio.current_time() - self._since_s
            raise ChildError(
                f"{self.child.name} gave no sign of life for {silent_s:.1f} s over {what}"
            )
        return result

    def _on_progress(self, progress: CallProgress) -> None:
        self.num_done = round(progress.done)
        self._mark()

    def _mark(self) -> None:
        self._since_s = trio.current_time()
        self._cpu_s = cpu_s_of(self.child.pid) if self.busy_s < math.inf else None

    async def _watch(self) -> None:
        """Return when the process has been silent for too long."""
        while True:
            silent_s = trio.current_time() - self._since_s
            if silent_s >= self.silence_s:
                return
            if silent_s < self.busy_s:
                look_s = self.busy_s - silent_s
            elif self._has_computed():
                self.is_too_busy = True
                return
            else:
                look_s = _LOOK_S
            await trio.sleep(min(look_s, self.silence_s - silent_s))

    def _has_computed(self) -> bool:
        """Whether it computed for nearly all the time that makes it too busy."""
        now_s = cpu_s_of(self.child.pid)
        if self._cpu_s is None or now_s is None:
            return False
        return now_s - self._cpu_s >= self.busy_s - _LOOK_S
