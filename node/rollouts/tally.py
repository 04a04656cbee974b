"""What became of this node's rollouts, as the learner says; without I/O."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from protocols.reasons import Reason
from protocols.rollouts import RolloutVerdict


@dataclass(frozen=True, slots=True)
class RefusalNotice:
    """Something that the contributor should read."""

    reason: Reason
    detail: str
    num_so_far: int


class RefusalTally:
    """Counts verdicts, and picks the refusals worth a line.

    The first of each reason, then one whenever a reason's count reaches another power of
    ten: a broken node tells why, and does not flood the log.
    """

    def __init__(self) -> None:
        self.num_accepted = 0
        self.num_overtaken = 0
        """Others were asked for these too, and were faster: nobody's fault."""
        self.num_tokens = 0
        """In accepted rollouts."""
        self._refused: Counter[Reason] = Counter()

    @property
    def num_refused(self) -> int:
        """Rollouts refused so far, for whatever reason."""
        return self._refused.total()

    @property
    def refused(self) -> dict[str, int]:
        """How many were refused, by reason."""
        return {reason.value: num for reason, num in sorted(self._refused.items())}

    def judged(self, verdicts: Iterable[RolloutVerdict]) -> list[RefusalNotice]:
        """Take in the verdicts on one submission."""
        notices: list[RefusalNotice] = []
        for verdict in verdicts:
            if verdict.refusal is None:
                self.num_accepted += 1
            elif verdict.refusal is Reason.ALREADY_ANSWERED:
                self.num_overtaken += 1
            else:
                notices += self._add(verdict.refusal, verdict.detail, 1)
        return notices

    def refused_whole(self, reason: Reason, detail: str, num_rollouts: int) -> list[RefusalNotice]:
        """Take in that a whole submission was refused."""
        return self._add(reason, detail, num_rollouts)

    def _add(self, reason: Reason, detail: str, num: int) -> list[RefusalNotice]:
        before = self._refused[reason]
        self._refused[reason] = after = before + num
        is_notable = len(str(after)) > len(str(before)) or before == 0
        return [RefusalNotice(reason, detail, after)] if is_notable else []
