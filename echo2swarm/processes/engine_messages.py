"""What an engine process is asked; specification: ``docs/specs/children.md``."""

from protocols.codec import Message
from protocols.leases import LeasedGroup
from protocols.manifest import Version
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams


class LoadPolicy(Message, frozen=True, tag="load_policy"):
    """Load a version: the model if it is the first, else its weights in place.

    If it fails, the engine holds the old weights and version, or, where that can't be, exits.
    """

    version: Version
    weights_dir: str
    """Holds safetensors files."""
    assets_dir: str
    """Holds the model config."""


class PolicyLoaded(Message, frozen=True):
    """The engine samples with this version from now on."""

    version: Version
    seconds: float


class Generate(Message, frozen=True, tag="generate"):
    """Sample completions."""

    groups: tuple[LeasedGroup, ...]
    sampling: SamplingParams


class Completion(Message, frozen=True):
    """One completion."""

    group_id: int
    sample_index: int
    tokens: bytes
    logprobs: bytes
    finish_reason: FinishReason
    oldest_version: Version
    newest_version: Version


class Generated(Message, frozen=True):
    """The answer to :class:`Generate`, in any order."""

    completions: tuple[Completion, ...]
    seconds: float


class Describe(Message, frozen=True, tag="describe"):
    """Ask for the engine's name and device; an error says why it can't work on this machine."""


class Description(Message, frozen=True):
    """What the engine is."""

    engine: str
    device: str
    version: str = ""
    """Of the library that samples; empty if there is none."""


EngineCall = Describe | LoadPolicy | Generate
