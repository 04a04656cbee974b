"""Saves checkpoints: the trainer's state and the run's position, complete by a rename."""

from functools import partial

import trio

from learner.ledger.ledger import Ledger
from learner.ports import Trainer
from learner.run_dir import RunDir


class Checkpoints:
    """Saves, and deletes what no resume will need."""

    def __init__(self, run_dir: RunDir, trainer: Trainer, ledger: Ledger, *, keep: int) -> None:
        self._run_dir = run_dir
        self._trainer = trainer
        self._ledger = ledger
        self._keep = keep

    async def save(self, step: int) -> None:
        """Save the state after ``step`` updates."""
        folder = await trio.to_thread.run_sync(self._run_dir.begin_checkpoint, step)
        await self._trainer.save_checkpoint(folder)
        await trio.to_thread.run_sync(
            partial(self._run_dir.complete_checkpoint, step, keep=self._keep)
        )
        oldest = await trio.to_thread.run_sync(self._run_dir.oldest_checkpoint)
        if oldest is not None:
            await self._ledger.forget_tokens(before_step=oldest.step)
