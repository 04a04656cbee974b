"""Somebody who has nothing to do with the run, and counts who connects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

HOST: Final = "127.99.0.1"
"""Neither the learner's address, nor a node's, nor an attacker's."""
MAX_OPEN_S: Final = 30.0


class Victim:
    """Where it listens, and how often it was dialled."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.num_dials = 0

    async def answer(self, stream: trio.SocketStream) -> None:
        """Take what comes, and say nothing."""
        self.num_dials += 1
        with trio.move_on_after(MAX_OPEN_S):
            async with stream:
                try:
                    while await stream.receive_some(1000):
                        pass
                except trio.BrokenResourceError:
                    pass


@asynccontextmanager
async def open_victim() -> AsyncIterator[Victim]:
    """Listen for the time of the context."""
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    port = listeners[0].socket.getsockname()[1]
    victim = Victim(f"/ip4/{HOST}/tcp/{port}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, victim.answer, listeners)
        yield victim
        nursery.cancel_scope.cancel()
