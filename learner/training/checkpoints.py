"""Saves checkpoints beside the training: the trainer copies its state, and writes the copy.

At most one is being written; who wants the next one waits. One that can't be written is
tried again after the next update; if that goes on for another reason than a full disk, the
run ends, because nobody would want it to go on unsaved.
"""

from functools import partial
from typing import Final

import structlog
import trio

from echo2swarm.system.errors import ChildError, DiskFullError, StoreError, SwarmError
from echo2swarm.system.files import is_full
from learner.config import CheckpointConfig
from learner.ledger.ledger import Ledger
from learner.run.checkpoint_store import CheckpointStore, replay_floor
from learner.training.ports import Trainer
from learner.training.wait_for_disk import is_for_want_of_room, when_there_is_room

MAX_FAILURES: Final = 3
"""In a row, a full disk aside."""

log = structlog.get_logger()


class _Wanted:
    """A checkpoint that somebody asked for."""

    def __init__(self, step: int, *, is_last: bool) -> None:
        self.step = step
        self.is_last = is_last
        self.copied = trio.Event()
        """The trainer may go on."""
        self.done = trio.Event()


class Checkpoints:
    """Saves, and deletes what no resume will need.

    Args:
        store: where they lie.
        trainer: whose state they are.
        ledger: forgets the tokens of rollouts that no resume will train on again.
        table: when, and how many.
        first_step: where the run began.
        saved_step: the newest checkpoint that there is.
    """

    def __init__(
        self,
        store: CheckpointStore,
        trainer: Trainer,
        ledger: Ledger,
        *,
        table: CheckpointConfig,
        first_step: int,
        saved_step: int | None,
    ) -> None:
        self._store = store
        self._trainer = trainer
        self._ledger = ledger
        self._table = table
        self._first_step = first_step
        self._saved_step = saved_step
        self._num_failures = 0
        self._is_overdue = False
        self._todo_send, self._todo = trio.open_memory_channel[_Wanted](0)

    def is_due(self, step: int) -> bool:
        """Whether the state after ``step`` updates is to be saved."""
        every = self._table.every_steps
        return bool(every) and (step % every == 0 or self._is_overdue)

    async def save(self, step: int) -> None:
        """Have the state saved, which is that after ``step`` updates; training may then go on."""
        wanted = _Wanted(step, is_last=False)
        await self._todo_send.send(wanted)
        await wanted.copied.wait()

    async def save_last(self, step: int) -> None:
        """Save the state after ``step`` updates, whatever it takes; returns when it is on disk."""
        if step == self._first_step and self._saved_step is None:
            return  # nothing has been done yet
        wanted = _Wanted(step, is_last=True)
        await self._todo_send.send(wanted)
        await wanted.done.wait()

    async def run(self) -> None:
        """Save what is asked for.

        Raises:
            StoreError: it can't be done, again and again.
            ChildError: the trainer is lost.
        """
        async for wanted in self._todo:
            try:
                if wanted.step != self._saved_step:
                    await self._try(wanted)
            finally:
                wanted.copied.set()
                wanted.done.set()

    async def _try(self, wanted: _Wanted) -> None:
        try:
            if wanted.is_last:
                await when_there_is_room("checkpoint", partial(self._save, wanted))
            else:
                await self._save(wanted)
        except SwarmError as exc:
            if isinstance(exc, ChildError) and not exc.error:
                raise
            self._failed(wanted, exc)
        else:
            self._num_failures, self._is_overdue = 0, False

    def _failed(self, wanted: _Wanted, exc: SwarmError) -> None:
        self._is_overdue = True
        if not is_for_want_of_room(exc):
            self._num_failures += 1
        if wanted.is_last or self._num_failures >= MAX_FAILURES:
            raise StoreError(
                f"the checkpoint of step {wanted.step} could not be saved, and nothing newer than "
                f"step {self._saved_step or self._first_step} is: {exc}"
            ) from exc
        log.error(
            "checkpoint.failed",
            step=wanted.step,
            error=str(exc),
            next="it is tried again after the next update",
        )

    async def _save(self, wanted: _Wanted) -> None:
        step, started_s = wanted.step, trio.current_time()
        copied_s: float | None = None

        def on_copied() -> None:
            nonlocal copied_s
            copied_s = trio.current_time()
            if not wanted.copied.is_set():
                wanted.copied.set()

        try:
            folder = await trio.to_thread.run_sync(self._store.begin, step)
            await self._trainer.save_checkpoint(
                folder, in_background=self._table.in_background, on_copied=on_copied
            )
            saved = await trio.to_thread.run_sync(self._store.complete, step)
        except OSError as exc:
            await trio.to_thread.run_sync(self._store.abandon, step)
            kind = DiskFullError if is_full(exc) else StoreError
            raise kind(f"can't write {self._store.folder}: {exc.strerror or exc}") from exc
        except SwarmError:
            await trio.to_thread.run_sync(self._store.abandon, step)
            raise
        self._saved_step = step
        now_s = trio.current_time()
        log.info(
            "checkpoint.saved",
            step=step,
            took_s=round(now_s - started_s, 3),
            held_up_s=round((copied_s or now_s) - started_s, 3),
            size_bytes=saved.size_bytes,
        )
        await self._tidy()

    async def _tidy(self) -> None:
        table = self._table
        await trio.to_thread.run_sync(
            partial(self._store.prune, keep=table.keep, keep_every_steps=table.keep_every_steps)
        )
        steps = [c.step for c in await trio.to_thread.run_sync(self._store.all)]
        floor = replay_floor(steps, first_step=self._first_step, keep=table.keep)
        await self._ledger.forget_tokens(before_step=floor)
