"""Looks, again and again, whether the node may work, and has the node act on it.

The I/O around :mod:`node.owner.policy`: reads the clock and the GPU, takes the owner's
orders, and tells what follows from them.
"""

from collections.abc import Callable, Collection
from math import isfinite
from typing import Final, NoReturn, Protocol, assert_never

import structlog
import trio

from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import UsageError
from echo2swarm.text.format import format_seconds
from node.owner.gpu import GpuMonitor, GpuUnreadableError, ParentOf, others_in, parent_of
from node.owner.hours import LocalTime, is_within, next_change_unix_s
from node.owner.policy import (
    Decision,
    DrainAction,
    GpuWatch,
    OwnerAction,
    OwnerFacts,
    PauseAction,
    RunAction,
    decide,
)
from node.owner.settings import OwnerSettings, change_settings

LOOK_S: Final = 1.0
GPU_LOOK_S: Final = 3.0

log = structlog.get_logger()


class Obedient(Protocol):
    """What acts on the owner's decisions."""

    def pause(self, *, relays: bool) -> None:
        """Take no work; pass on weights, and fetch them, only if it ``relays``."""
        ...

    def resume(self) -> None:
        """Take work again."""
        ...

    def drain(self) -> None:
        """Finish, and leave."""
        ...

    def limit(self, settings: OwnerSettings) -> None:
        """Keep to these limits from now on."""
        ...


class OwnerKeeper:
    """The owner's say.

    Args:
        settings: at the start.
        node: acts on it.
        monitor: of the GPU; None where there is none.
        own_pid: the node's process: what it started is no other user of the GPU.
        unix_now_s: the wall clock.
        local_at: the local time at a Unix time.
        parent_of: see :mod:`node.owner.gpu`.
    """

    def __init__(
        self,
        settings: OwnerSettings,
        node: Obedient,
        *,
        monitor: GpuMonitor | None,
        own_pid: int,
        unix_now_s: Callable[[], float],
        local_at: LocalTime,
        parent_of: ParentOf = parent_of,
    ) -> None:
        self._settings = settings
        self._node = node
        self._monitor = monitor
        self._own_pid = own_pid
        self._unix_now_s = unix_now_s
        self._local_at = local_at
        self._parent_of = parent_of
        self._order: OwnerAction | None = None
        self._is_leaving = False
        self._gpu_busy = ""
        self._decision: Decision = RunAction()
        self._changes = ChangeEvent()
        self.changes = ChangeEvent()
        """Rung when the node was paused, or works again."""
        self._io = trio.CapacityLimiter(1)

    @property
    def settings(self) -> OwnerSettings:
        """What is set now."""
        return self._settings

    @property
    def paused(self) -> str:
        """Why the node is paused; empty if it is not."""
        return self._decision.why if isinstance(self._decision, PauseAction) else ""

    @property
    def is_relaying(self) -> bool:
        """Whether weights may be passed on now."""
        return not self.paused or self._settings.relay_while_paused

    def until_unix_s(self, now_s: float) -> float | None:
        """Return when the pause is expected to end; None if there is none, or nobody knows."""
        if not self.paused:
            return None
        now_unix_s = self._unix_now_s()
        if self._is_ordered(now_s):
            left_s = self._order.until_s - now_s if self._order else 0.0
            return now_unix_s + left_s if isfinite(left_s) else None
        hours = self._settings.hours
        if not is_within(hours, self._local_at(now_unix_s)):
            return next_change_unix_s(hours, now_unix_s, self._local_at)
        return None

    # Orders. All of them take effect before they return.

    def pause(self, *, for_s: float | None, why: str, now_s: float) -> str:
        """Pause, for some time or until :meth:`resume`; returns what that means."""
        self._order = (
            OwnerAction(why=why) if for_s is None else OwnerAction(why=why, until_s=now_s + for_s)
        )
        self._act(now_s)
        how_long = "until `echo2-node resume`" if for_s is None else f"for {format_seconds(for_s)}"
        return f"paused {how_long}; what the engine is at is finished, all else handed back"

    def resume(self, now_s: float) -> str:
        """End a pause that was ordered; returns what that means."""
        self._order = None
        self._act(now_s)
        return f"still not working: {self.paused}" if self.paused else "works again"

    def drain(self, now_s: float) -> str:
        """Leave; returns what that means."""
        self._is_leaving = True
        self._act(now_s)
        return "finishing what is begun, handing back the rest, then leaving"

    def change(self, changes: dict[str, str], now_s: float) -> str:
        """Change settings; returns what changed.

        Raises:
            UsageError: one of them is wrong, or can't be done here; nothing has changed.
        """
        settings = change_settings(self._settings, changes)
        if self._monitor is None:
            _refuse_for_want_of_a_gpu(settings, changes)
        self._settings = settings
        self._node.limit(settings)
        was_paused = bool(self.paused)
        self._act(now_s)
        if was_paused and self.paused:
            self._node.pause(relays=settings.relay_while_paused)
        self._changes.notify()
        log.info("owner.set", **{name.replace("-", "_"): text for name, text in changes.items()})
        return "set " + ", ".join(f"{name}={text}" for name, text in changes.items())

    # Running.

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._monitor is not None:
                nursery.start_soon(self._watch_gpu, self._monitor)
            while True:
                change = self._changes.next_change
                self._act(trio.current_time())
                with trio.move_on_after(LOOK_S):
                    await change.wait()

    async def _watch_gpu(self, monitor: GpuMonitor) -> NoReturn:
        watch, power_w, has_complained = GpuWatch(), None, False
        while True:
            settings = self._settings
            if settings.power_watts is not None and settings.power_watts != power_w:
                power_w = settings.power_watts
                await self._cap_power(monitor, power_w)
            if settings.pause_on_gpu_use:
                try:
                    reading = await trio.to_thread.run_sync(monitor.read, limiter=self._io)
                except GpuUnreadableError as exc:
                    if not has_complained:
                        log.warning("gpu.unreadable", error=str(exc), next="not pausing for it")
                    has_complained = True
                else:
                    others = others_in(
                        reading.uses, own_pid=self._own_pid, parent_of=self._parent_of
                    )
                    self._gpu_busy = watch.look(others, trio.current_time())
                    self._changes.notify()
            else:
                self._gpu_busy = ""
            await trio.sleep(GPU_LOOK_S)

    async def _cap_power(self, monitor: GpuMonitor, watts: float) -> None:
        try:
            set_w = await trio.to_thread.run_sync(monitor.cap_power, watts, limiter=self._io)
        except GpuUnreadableError as exc:
            log.warning("power.not_capped", error=str(exc))
        else:
            log.info("power.capped", watts=set_w)

    def _is_ordered(self, now_s: float) -> bool:
        return self._order is not None and now_s < self._order.until_s

    def _act(self, now_s: float) -> None:
        settings = self._settings
        decision = decide(
            OwnerFacts(
                now_s=now_s,
                local=self._local_at(self._unix_now_s()),
                hours=settings.hours,
                order=self._order,
                gpu_busy=self._gpu_busy if settings.pause_on_gpu_use else "",
                is_leaving=self._is_leaving,
            )
        )
        before, self._decision = self._decision, decision
        if type(before) is type(decision):
            return
        self.changes.notify()
        match decision:
            case RunAction():
                log.info("node.resumed")
                self._node.resume()
            case PauseAction(why):
                log.info("node.paused", why=why, relays_weights=settings.relay_while_paused)
                self._node.pause(relays=settings.relay_while_paused)
            case DrainAction():
                self._node.drain()
            case _:
                assert_never(decision)


def _refuse_for_want_of_a_gpu(settings: OwnerSettings, changes: Collection[str]) -> None:
    wanted = {
        "pause-on-gpu-use": settings.pause_on_gpu_use,
        "power-watts": settings.power_watts is not None,
    }
    for name, is_wanted in wanted.items():
        if is_wanted and name in changes:
            raise UsageError(
                f"{name}: this node can't look at a GPU; `echo2-node doctor` says what is missing "
                "for it, then start the node again"
            )
