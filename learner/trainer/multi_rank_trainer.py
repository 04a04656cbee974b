"""The trainer of several processes, as rank 0 runs it: every call goes to all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from learner.config import TrainerConfig
from learner.trainer.folders import new_folder, write_state
from learner.trainer.messages import Start, Started, TrainGroup, Update, Updated, WriteWeights
from learner.trainer.rank_group import RankGroup
from learner.trainer.rank_messages import CopyState, JoinRanks, WriteCopy
from learner.trainer.ranks import meet_others, open_meeting
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.update import OnProgress


class MultiRankTrainer:
    """Rank 0 of a trainer, and its hold of the others."""

    def __init__(self, start: Start, table: TrainerConfig) -> None:
        size = table.num_processes
        meeting = open_meeting()
        self._num_copies = 0
        self._gang = RankGroup(size)

        def own() -> PolicyTrainer:
            return PolicyTrainer(
                start, table, meet_others(0, size, meeting.port, device=table.device)
            )

        try:
            calls = [JoinRanks(rank, size, meeting.port, start) for rank in range(1, size)]
            self._trainer = self._gang.do(own, *calls)
        except BaseException:
            self._gang.close()
            raise
        self._meeting = meeting  # open as long as there are ranks: some find each other late

    @property
    def step(self) -> int:
        """Updates done."""
        return self._trainer.step

    @property
    def pids(self) -> list[int]:
        """Of the other processes."""
        return self._gang.pids

    def started(self) -> Started:
        """Describe the trainer."""
        return self._trainer.started()

    def update(self, step: int, groups: Sequence[TrainGroup], on_progress: OnProgress) -> Updated:
        """Make one optimizer step with ``groups``."""
        return self._gang.do(
            lambda: self._trainer.update(step, groups, on_progress), Update(step, tuple(groups))
        )

    def write_weights(self, folder: Path) -> list[str]:
        """Write the present weights into the new ``folder``; return the files' names in order."""
        return self._gang.do(lambda: self._trainer.write_weights(folder), WriteWeights(str(folder)))

    def copy_state(self) -> Callable[[Path], None]:
        """Copy all state, and return what writes the copy into a new folder, in any thread."""
        number, self._num_copies = self._num_copies, self._num_copies + 1
        write_own = self._gang.do(self._trainer.copy_part, CopyState(number))
        step = self.step

        def write(folder: Path) -> None:
            # One process makes the folder, and renames or removes it: the others only fill it.
            with new_folder(folder) as partial:
                told = self._gang.tell(WriteCopy(number, str(partial)))
                try:
                    write_own(partial)
                finally:
                    error = told.wait()
                if error is not None:
                    raise error
                write_state(partial, {"step": step})

        return write

    def close(self) -> None:
        """End the other processes."""
        self._gang.close()
