"""The port to whatever turns prompts into completions.

Adapters pass the same contract tests: every sample asked for is answered once,
with finite logprobs and the version that sampled it; a version that could not
be applied leaves the old one in place; an engine that dies comes back without
a policy, and is given the newest one held.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError, SwarmError
from node.engine.messages import Description, Generated
from protocols.ids import PolicyVersion
from protocols.leases import LeasedGroup
from protocols.sampling import SamplingParams


class EngineDownError(ChildError):
    """There is no engine process now: it died, or is being started. Work can be given back."""


class EngineLostError(EngineDownError):
    """The engine died during the call."""


class EngineBrokenError(SwarmError):
    """The engine can't work on this machine, or died again and again; the node gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFiles:
    """One version as files on this machine; they must stay while they are being loaded."""

    version: PolicyVersion
    weights_dir: Path
    assets_dir: Path


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine answers calls; it has no policy yet."""

    description: Description


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The engine process ended; pending calls have failed."""

    why: str


@dataclass(frozen=True, slots=True)
class EngineWeakened:
    """One of several engine processes ended; others go on, and do its work."""

    why: str


EngineEvent = EngineReady | EngineExited | EngineWeakened


class RolloutEngine(Protocol):
    """What the node needs of an engine."""

    @property
    def applied_version(self) -> PolicyVersion | None:
        """What it samples with now; None if it has no policy, or is not running."""
        ...

    @property
    def num_restarts(self) -> int:
        """How often it was started again."""
        ...

    @property
    def is_continuous(self) -> bool:
        """Whether calls may overlap.

        Such an engine batches the completions of all calls together, and applies a version in
        the midst of them: each completion says which versions sampled it.
        """
        ...

    async def load_policy(self, policy: PolicyFiles) -> float:
        """Apply a version, and return how many seconds that took.

        Raises:
            EngineLostError: it died of it; the next one has no policy.
            EngineDownError: there is no engine process now.
            ChildError: the version can't be applied; the old one is still there.
        """
        ...

    async def generate(
        self,
        groups: Sequence[LeasedGroup],
        sampling: SamplingParams,
        *,
        on_progress: Callable[[CallProgress], None] | None = None,
    ) -> Generated:
        """Return one completion per sample of ``groups``, in any order.

        Raises:
            EngineDownError: there is no engine process now.
            ChildError: these can't be sampled; the engine lives on.
        """
        ...


class LocalEngine(RolloutEngine, Protocol):
    """An engine whose processes are on this machine."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that answer now."""
        ...
