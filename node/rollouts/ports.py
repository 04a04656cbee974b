"""What the worker needs of the rest of the node."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from echo2swarm.weights.store.library import HeldVersion
from protocols.ids import PolicyVersion


class Policies(Protocol):
    """The versions on this machine; :class:`echo2swarm.weights.sync.PolicySync` is one."""

    @property
    def held(self) -> HeldVersion | None:
        """The newest version that is here, whole and verified."""
        ...

    @property
    def versions(self) -> Collection[PolicyVersion]:
        """All versions that are here, whole and verified."""
        ...

    async def next_version(self, after: PolicyVersion | None) -> HeldVersion:
        """Return the newest version held, as soon as it is newer than ``after``."""
        ...

    def pin(self, version: PolicyVersion) -> AbstractContextManager[HeldVersion]:
        """Keep a version's files where they are while the context lasts.

        Raises:
            StoreError: the version is not held (any more).
        """
        ...
