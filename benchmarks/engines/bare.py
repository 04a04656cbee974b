"""What is asked of a library without any of this project around it, in a process of its own."""

from typing import Protocol

from echo2swarm.processes.worker import OnProgress, serve_parent
from protocols.codec import Message
from protocols.sampling import SamplingParams


class OpenBare(Message, frozen=True, tag="open"):
    """Load the model."""

    model_dir: str
    options: str
    """Of the engine that it is compared with, as its child is given them."""


class RunBare(Message, frozen=True, tag="run"):
    """Sample completions, and say how long that took."""

    prompts: tuple[bytes, ...]
    """Packed token ids."""
    num_samples: int
    """Completions of each prompt."""
    sampling: SamplingParams
    has_logprobs: bool = True
    """Also find the logprob of each sampled token."""


class BareRan(Message, frozen=True):
    """The answer to both calls."""

    seconds: float
    num_tokens: int
    """Of the completions."""


BareCall = OpenBare | RunBare


class Bare(Protocol):
    """One library."""

    def open(self, call: OpenBare) -> None:
        """Load the model."""
        ...

    def run(self, call: RunBare) -> BareRan:
        """Sample."""
        ...


def serve_bare(bare: Bare) -> None:
    """Answer calls until the parent is gone."""

    def handle(call: BareCall, _on_progress: OnProgress) -> BareRan:
        match call:
            case OpenBare():
                bare.open(call)
                return BareRan(seconds=0.0, num_tokens=0)
            case RunBare():
                return bare.run(call)

    serve_parent(BareCall, handle)  # type: ignore[arg-type]  # a union is no type[R]
