"""Which peers a share of what is limited is kept for: those whose work was checked."""

from collections.abc import Callable

from protocols.ids import PeerId

IsProven = Callable[[PeerId], bool]
"""Says whether a peer has done work here that was checked; asked often, and must be quick."""
