"""Hands metrics on to a tool, and never lets it hold the run up."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol

import structlog
import trio

from learner.status.scalars import scalars_of, update_of

MAX_QUEUED: Final = 1000
"""Lines that wait for the tool."""
_WARN_EVERY_S: Final = 300.0
_LAST_S: Final = 5.0

log = structlog.get_logger()


class Curves(Protocol):
    """Takes points; may block."""

    def write(self, scalars: dict[str, float], *, step: int, unix_s: float) -> None:
        """Append one point of each curve.

        Raises:
            OSError: it could not be done.
        """
        ...

    def close(self) -> None:
        """End."""
        ...


class CurveWriter:
    """Takes lines of ``metrics.jsonl``, and writes them as points from a task of its own."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves
        self._send, self._receive = trio.open_memory_channel[Mapping[str, Any]](MAX_QUEUED)
        self._warned_s = -_WARN_EVERY_S

    def note(self, record: Mapping[str, Any]) -> None:
        """Queue a line; one that finds the queue full has no points."""
        try:
            self._send.send_nowait(record)
        except trio.WouldBlock:
            self._warn("the tool is too slow")
        except trio.ClosedResourceError:
            log.debug("tracking.over", step=update_of(record))

    async def run(self) -> None:
        """Write what is queued, until cancelled; then what is still queued, in a few seconds."""
        try:
            async for record in self._receive:
                # It is in no queue any more.
                with trio.CancelScope(shield=True):
                    await self._write(record)
        finally:
            self._send.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_S):
                async for record in self._receive:
                    await self._write(record)
            self._curves.close()

    async def _write(self, record: Mapping[str, Any]) -> None:
        step = update_of(record)
        if step is None:
            return
        write = partial(self._curves.write, scalars_of(record), step=step, unix_s=record["unix_s"])
        try:
            await trio.to_thread.run_sync(write)
        except OSError as exc:
            self._warn(str(exc))

    def _warn(self, why: str) -> None:
        now_s = trio.current_time()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            log.warning("tracking.points_lost", why=why, note="metrics.jsonl has them all")
