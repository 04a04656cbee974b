"""What may change in the configuration of a run when it is resumed, and what may not.

Three kinds of keys: those that make it another run (its prompts, its model, how rollouts are
sampled and grouped: what the ledger holds would not fit any more); those that decide what an
update does, and may change only where no recorded update has to be made again; and the rest.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec

from echo2swarm.system.errors import ConfigError
from learner.config.tables import LearnerConfig

_ANOTHER_RUN: Final = frozenset(
    {
        "run.seed",
        "rollouts.group_size",
        "rollouts.temperature",
        "rollouts.max_new_tokens",
        "trainer.kind",
    }
)
_ANOTHER_RUN_TABLES: Final = frozenset({"model", "task"})
_SAME_UPDATE: Final = frozenset(
    {
        "trainer.device",
        "trainer.threads",
        "trainer.micro_batch_tokens",
        "trainer.activation_checkpointing",
        "trainer.num_processes",
        "trainer.max_skipped_steps",
        "trainer.train_s",
    }
)
"""Keys of the trainer that leave an update what it is, but for rounding."""


class Weight(Enum):
    """How much a change of a key changes."""

    FREE = "free"
    UPDATES = "updates"
    """The updates from now on."""
    RUN = "run"
    """So much that it would be another run."""


@dataclass(frozen=True, slots=True)
class Change:
    """One key that has another value than before."""

    key: str
    before: object
    now: object

    @property
    def weight(self) -> Weight:
        """How much it changes."""
        table = self.key.partition(".")[0]
        if self.key in _ANOTHER_RUN or table in _ANOTHER_RUN_TABLES:
            return Weight.RUN
        if table == "trainer" and self.key not in _SAME_UPDATE:
            return Weight.UPDATES
        return Weight.FREE

    def __str__(self) -> str:
        """Say it in a few words."""
        return f"{self.key} from {self.before!r} to {self.now!r}"


def changes(before: LearnerConfig, now: LearnerConfig) -> tuple[Change, ...]:
    """Return the keys that differ, in their order."""
    old, new = dict(_flat(msgspec.to_builtins(before))), dict(_flat(msgspec.to_builtins(now)))
    return tuple(
        Change(key, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    )


def check_resumable(found: tuple[Change, ...], *, num_updates_to_replay: int, folder: str) -> None:
    """Do nothing if a run may be resumed with these changes.

    Args:
        found: what differs from how the run went on so far.
        num_updates_to_replay: recorded updates that would have to be made again.
        folder: the run's, for the message.

    Raises:
        ConfigError: it may not; the message names each key that is in the way.
    """
    if other := [change for change in found if change.weight is Weight.RUN]:
        raise ConfigError(
            f"{other[0].key}: a run that is resumed keeps its model, task, seed and sampling, but "
            f"this would change {_listed(other)}; leave that as it was, or begin a new run from "
            f"a checkpoint: echo2-learner fork {shlex.quote(folder)} --run-dir NEW --set ..."
        )
    if num_updates_to_replay and (
        updates := [change for change in found if change.weight is Weight.UPDATES]
    ):
        raise ConfigError(
            f"{updates[0].key}: {num_updates_to_replay} updates since the last checkpoint have to "
            f"be made again, and would come out differently with {_listed(updates)}; resume once "
            "without the change, stop with Ctrl-C (that saves a checkpoint), then resume with it"
        )


def _listed(found: list[Change]) -> str:
    return ", ".join(map(str, found))


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value
