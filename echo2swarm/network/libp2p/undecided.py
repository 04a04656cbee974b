"""Connections of which nobody knows yet what they are: bounded in number and in time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from echo2swarm.network.admission.connection_seats import ConnectionSeat, holding_most

MAX_UNDECIDED: Final = 256
DECIDE_S: Final = 5.0


class Undecided:
    """Where connections wait for their first byte, and for the token that a bulk one shows.

    An honest one is through within some round trips. Where too many wait, the oldest of the network
    that has most of them waiting is closed.
    """

    def __init__(self, max_waiting: int = MAX_UNDECIDED) -> None:
        self._max_waiting = max_waiting
        self._waiting: dict[ConnectionSeat, trio.CancelScope] = {}

    @contextmanager
    def scope(self, address: str) -> Iterator[trio.CancelScope]:
        """Yield the scope in which a connection from the IP ``address`` says what it is."""
        seat = ConnectionSeat(address, is_dialled=False)
        with trio.move_on_after(DECIDE_S) as scope:
            self._waiting[seat] = scope
            if len(self._waiting) > self._max_waiting:
                self._waiting.pop(holding_most(self._waiting)).cancel()
            try:
                yield scope
            finally:
                self._waiting.pop(seat, None)
