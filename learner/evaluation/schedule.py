"""Which versions are evaluated while a run goes on, without I/O."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSchedule:
    """The version that a run begins with, one every so many steps, and the last one."""

    every_steps: int
    first_version: int
    """What the run begins with."""
    last_version: int
    """The last that will be published."""

    def due(self, newest: int) -> int:
        """Return the oldest version that an evaluation now may be of, ``newest`` being published.

        That is the last one due so far: those due before it, and not evaluated, are passed by.
        """
        if newest >= self.last_version:
            return self.last_version
        return max(self.first_version, newest - newest % self.every_steps)

    def is_due(self, newest: int, *, evaluated: int | None) -> bool:
        """Whether a version is to be evaluated, ``evaluated`` being the newest that was."""
        return evaluated is None or evaluated < self.due(newest)
