"""Answers that end with the learner at work, though the network that carries them lives on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from echo2swarm.network.rpc import Answer
from echo2swarm.system.errors import NetworkError
from protocols.ids import PeerId

_OVER: Final = "nobody is at work here now"


class CancelAnswers:
    """Answers while its context is open.

    What answers need, the ledger above all, is closed before the network is: a call that
    comes late, or is still being answered then, must not reach for it.
    """

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._over = trio.Event()
        self._all_ended = trio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """On leaving, end what is being answered, and wait until it has ended."""
        try:
            yield
        finally:
            self._over.set()
            for scope in self._scopes:
                scope.cancel()
            if self._scopes:
                with trio.CancelScope(shield=True):
                    await self._all_ended.wait()

    def guard(self, answer: Answer) -> Answer:
        """Return ``answer`` for the length of the context; after that, callers get none."""

        async def guarded(peer: PeerId, data: bytes) -> bytes:
            if self._over.is_set():
                raise NetworkError(_OVER)
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    return await answer(peer, data)
                finally:
                    self._scopes.discard(scope)
                    if self._over.is_set() and not self._scopes:
                        self._all_ended.set()
            raise NetworkError(_OVER)

        return guarded
