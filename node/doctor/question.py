"""What the doctor is asked."""

from dataclasses import dataclass
from pathlib import Path

from node.engine.options import Options
from protocols.ticket import Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """About which run, if any, and with what."""

    ticket: Ticket | None
    state_dir: Path
    engine_kind: str
    options: Options
    disk_bytes: int | None
    """The owner's quota."""
    is_quick: bool
