"""Members, and who of them is paired with whom: the graph that the tracker shapes; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols.ids import PeerId


@dataclass(slots=True)
class OverlayMember:
    """One member, and its neighbours."""

    peer: PeerId
    is_reachable: bool
    """Or may be: nobody is taken for unreachable before it was tried."""
    upload_bytes_per_s: float = 0.0
    near: dict[PeerId, None] = field(default_factory=dict)
    """Its neighbours, in the order in which they came."""
    num_reachable: int = 0
    """How many of them can be dialled."""

    @property
    def num_unreachable(self) -> int:
        """How many of its neighbours can't be dialled."""
        return len(self.near) - self.num_reachable


def pair(one: OverlayMember, other: OverlayMember) -> None:
    """Make two members neighbours."""
    for here, there in ((one, other), (other, one)):
        here.near[there.peer] = None
        here.num_reachable += there.is_reachable


def unpair(one: OverlayMember, other: OverlayMember) -> None:
    """Make two neighbours strangers."""
    for here, there in ((one, other), (other, one)):
        del here.near[there.peer]
        here.num_reachable -= there.is_reachable


def island_of(members: Mapping[PeerId, OverlayMember], member: OverlayMember) -> dict[PeerId, None]:
    """Return all whom ``member`` is connected to through those that can be dialled."""
    island: dict[PeerId, None] = {member.peer: None}
    to_visit = [member]
    while to_visit:
        for peer in to_visit.pop().near:
            if peer not in island and (other := members[peer]).is_reachable:
                island[peer] = None
                to_visit.append(other)
    return island
