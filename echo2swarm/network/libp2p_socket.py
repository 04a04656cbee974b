"""The socket under one connection of libp2p's."""

from collections.abc import Callable

import trio
from libp2p.io.trio import TrioTCPStream


class OwnedStream(TrioTCPStream):  # type: ignore[misc]  # untyped library
    """A TCP stream that tells when it was closed, and can be closed without waiting."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.closed = trio.Event()
        self.on_closed: Callable[[], None] | None = None
        self.on_flood: Callable[[], None] | None = None

    async def close(self) -> None:
        """Close it."""
        self._note_end()
        await super().close()

    def cut(self) -> None:
        """Close it at once; who reads from it or writes to it learns that it is over."""
        self._note_end()
        self.stream.socket.close()

    def cut_flood(self) -> None:
        """Close it at once, and tell that the other end sent more than it may."""
        if self.on_flood is not None:
            self.on_flood()
        self.cut()

    def _note_end(self) -> None:
        self.closed.set()
        if self.on_closed is not None:
            self.on_closed()
            self.on_closed = None
