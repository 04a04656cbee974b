"""Single facts in the ledger: where the run began, what was forgotten."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

FORGOTTEN_BEFORE: Final = "forgotten_before"
"""Updates before this step can't be made again: their rollouts' tokens were deleted."""
_FIRST_STEP: Final = "first_step"
_FIRST_PROMPT: Final = "first_prompt"
_SKIPPED_PROMPTS: Final = "skipped_prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a run started from: nothing, or a checkpoint of another run."""

    step: int = 0
    first_prompt: int = 0
    """Those before it were used by the other run..."""
    skipped_prompts: tuple[int, ...] = ()
    """... but for these."""

    def as_meta(self) -> Iterator[tuple[str, str]]:
        """Yield the facts as the ledger keeps them."""
        yield _FIRST_STEP, str(self.step)
        yield _FIRST_PROMPT, str(self.first_prompt)
        yield _SKIPPED_PROMPTS, msgspec.json.encode(self.skipped_prompts).decode()


def read_beginning(db: sqlite3.Connection) -> Beginning:
    """Return where the run of this ledger began."""
    return Beginning(
        step=int(get_meta(db, _FIRST_STEP) or 0),
        first_prompt=int(get_meta(db, _FIRST_PROMPT) or 0),
        skipped_prompts=msgspec.json.decode(
            get_meta(db, _SKIPPED_PROMPTS) or "[]", type=tuple[int, ...]
        ),
    )


def get_meta(db: sqlite3.Connection, key: str) -> str | None:
    """Return one fact, if it is known."""
    row: tuple[str] | None = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def set_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    """Note one fact, instead of what was noted under ``key`` before."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
