"""What the doctor is asked."""

from dataclasses import dataclass
from pathlib import Path

from node.engine.options import EngineOptions
from protocols.ticket import Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """About which run, if any, and with what."""

    ticket: Ticket | None
    state_dir: Path
    engine_kind: str
    options: EngineOptions
    disk_bytes: int | None
    """The owner's quota."""
    is_quick: bool
