"""One of a trainer's other processes: ``python -m learner.trainer.rank_worker``, see ``gang``.

It does what rank 0 tells it, which is what rank 0 does itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from echo2swarm.processes.worker import Later, OnProgress, serve_parent
from learner.config import TrainerConfig
from learner.trainer.environment import prepare, set_threads, threads_per_rank
from learner.trainer.messages import Update, WriteWeights
from learner.trainer.rank_messages import CallDone, CopyState, JoinRanks, RankCall, WriteCopy

if TYPE_CHECKING:
    from learner.trainer.trainer import PolicyTrainer


class RankWorker:
    """Answers the calls of rank 0."""

    def __init__(self) -> None:
        self._trainer: PolicyTrainer | None = None
        self._copies: dict[int, Callable[[Path], None]] = {}

    def handle(self, call: RankCall, _on_progress: OnProgress) -> msgspec.Struct | Later:
        """Do what ``call`` says."""
        if isinstance(call, JoinRanks):
            self._trainer = join_ranks(call)
            return CallDone()
        trainer = self._trainer
        if trainer is None:
            raise ValueError(f"{type(call).__name__} before JoinRanks")
        match call:
            case Update(step, groups):
                trainer.update(step, groups, _tell_nobody)
            case WriteWeights(folder):
                trainer.write_weights(Path(folder))
            case CopyState(number):
                self._copies[number] = trainer.copy_part()
            case WriteCopy(number, folder):
                return Later(lambda: self._write(number, Path(folder)))
        return CallDone()

    def _write(self, number: int, folder: Path) -> CallDone:
        self._copies.pop(number)(folder)
        return CallDone()


def join_ranks(call: JoinRanks) -> "PolicyTrainer":
    """Find the other ranks, and load what this one holds."""
    table = msgspec.convert(call.start.trainer, TrainerConfig)
    set_threads(threads_per_rank(table))
    # Torch must not be there before the number of threads is set.
    from learner.trainer.ranks import meet_others  # noqa: PLC0415
    from learner.trainer.trainer import PolicyTrainer  # noqa: PLC0415

    ranks = meet_others(call.rank, call.size, call.port, device=table.device)
    return PolicyTrainer(call.start, table, ranks)


def _tell_nobody(_what: str, _done: float, _total: float) -> None:
    """Rank 0 tells the learner of progress."""


def main() -> None:
    """Serve rank 0 until it is gone."""
    prepare()
    serve_parent(RankCall, RankWorker().handle)  # type: ignore[arg-type]  # a union is no type[R]


if __name__ == "__main__":
    main()
