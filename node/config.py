"""What the contributor decided, as one value."""

from dataclasses import dataclass, field
from pathlib import Path

from node.engine.process import EngineSpec
from node.owner.settings import OwnerSettings
from protocols.ticket import Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What the contributor decided."""

    ticket: Ticket
    state_dir: Path
    """Its own: identity, weights, control socket."""
    name: str
    listen: tuple[str, ...]
    advertise: tuple[str, ...]
    engines: tuple[EngineSpec, ...]
    """Of one kind: one, or several side by side."""
    max_batch: int
    """Most completions sampled at once, by all of them."""
    usd_per_hour: float
    owner: OwnerSettings = field(default_factory=OwnerSettings)
    """When it works, and what it may use."""
    registry: Path | None = None
    """Where running nodes are noted, for ``status``; None notes nothing."""
    is_hole_punching: bool = True
    """Whether to connect to nodes behind routers with the learner's help."""
    is_ticket_expired: bool = False
    """By this machine's clock, which may be wrong: the learner's decides."""
