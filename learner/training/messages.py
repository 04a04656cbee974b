"""What the learner asks of its trainer process; specification: ``docs/specs/children.md``.

The first call is :class:`Start`. A call that fails leaves model, optimizer and
step as they were.
"""

from typing import Any, Final

import msgspec

from protocols.codec import Message
from protocols.manifest import Version


class TrainRollout(Message, frozen=True):
    """One completion to train on."""

    tokens: bytes
    """Packed token ids of the completion."""
    logprobs: bytes
    """Packed behaviour logprobs, one per token."""
    version: Version
    """The oldest version that sampled it."""
    reward: float
    is_truncated: bool
    peer_id: str
    """Which node made it; for drift metrics."""


class TrainGroup(Message, frozen=True):
    """One prompt and all its completions: the unit that advantages are relative to."""

    group_id: int
    prompt_tokens: bytes
    rollouts: tuple[TrainRollout, ...]


class Start(Message, frozen=True, tag="start"):
    """Load the model; or, with ``checkpoint_dir``, everything as it was saved there."""

    model_dir: str
    trainer: dict[str, Any]
    """The ``[trainer]`` table of the resolved config."""
    seed: int
    temperature: float
    checkpoint_dir: str | None = None
    max_new_tokens: int = 256
    """``rollouts.max_new_tokens``: the constant of the length normalisation of that name."""
    fresh_optimizer: bool = False
    """Take only the weights from the checkpoint, and its step."""
    warmup_from: Version = 0
    """The step at which the optimizer was new."""


class Started(Message, frozen=True):
    """The trainer is ready."""

    step: Version
    """0, or the step of the checkpoint."""
    num_parameters: int
    vocab_size: int
    rss_bytes: int


class Update(Message, frozen=True, tag="update"):
    """Make one optimizer step."""

    step: Version
    """Steps done before this one; must be what the trainer counts itself."""
    groups: tuple[TrainGroup, ...]


class SampledBy(Message, frozen=True):
    """What recomputing tells of one node's rollouts, of those that have a gradient."""

    num_rollouts: int
    num_left_out: int
    """Those whose claimed logprobs are too far from the recomputed ones to count."""
    unlikely_evidence: float
    """Sum of log(q / b): of what a flattened policy gives its tokens, against what it claims."""
    likely_evidence: float
    """The same of a sharpened policy."""


class Updated(Message, frozen=True):
    """The step is done (or was skipped, which counts as a step without change)."""

    step: Version
    """Steps done now."""
    metrics: dict[str, float]
    """By name; documented in ``docs/metrics.md``."""
    drift_by_peer: dict[str, dict[str, float]]
    """How far what each node told is from what was recomputed; see ``docs/metrics.md``."""
    by_staleness: dict[int, dict[str, float]] = msgspec.field(default_factory=dict)
    """What depends on who sampled, for each staleness; documented in ``docs/metrics.md``."""
    sampled_by: dict[str, SampledBy] = msgspec.field(default_factory=dict)
    """What each node's rollouts show of how they were sampled."""


class WriteWeights(Message, frozen=True, tag="write_weights"):
    """Write the present weights as safetensors files into a new folder."""

    folder: str


class WroteWeights(Message, frozen=True):
    """The files are complete and synced."""

    files: tuple[str, ...]
    """Names, in the order in which they make up the payload."""
    step: Version


class SaveCheckpoint(Message, frozen=True, tag="save_checkpoint"):
    """Write all state into a new folder (a temporary name, synced, then renamed).

    In the background, the state is copied in memory, which is told as progress ``copied``.
    From then on other calls are answered, while the copy is being written.
    """

    folder: str
    in_background: bool = False
    """Answer other calls while it is being written."""


class SavedCheckpoint(Message, frozen=True):
    """The checkpoint is complete."""

    step: Version


COPIED: Final = "copied"
"""The progress of a :class:`SaveCheckpoint` from which on other calls are answered."""

TrainerCall = Start | Update | WriteWeights | SaveCheckpoint
