"""What the objective of an update is made of, by the names that the literature gives it.

A preset stands for the choices of one paper; each can be made otherwise by its own key.
``docs/objective.md`` has the formulas and their sources.
"""

from dataclasses import dataclass
from typing import Final, Literal

Preset = Literal["standard", "grpo", "dr_grpo", "dapo", "gspo"]
LengthNorm = Literal["token", "sequence", "constant"]
Level = Literal["token", "sequence", "geometric"]
"""A ratio of probabilities is of a token, of a sequence (the product over its tokens), or the
geometric mean over a sequence's tokens."""
Importance = Literal["decoupled", "coupled", "none"]
KlEstimator = Literal["k2", "k3", "k3_unbiased"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a preset decides."""

    clip_low: float
    clip_high: float
    ratio_level: Level
    length_norm: LengthNorm
    scale_advantages: bool


PRESETS: Final[dict[Preset, Choices]] = {
    # The clips of DAPO, the lengths of Dr. GRPO, the advantages of GRPO.
    "standard": Choices(
        clip_low=0.2,
        clip_high=0.28,
        ratio_level="token",
        length_norm="constant",
        scale_advantages=True,
    ),
    # DeepSeekMath, arXiv:2402.03300, equation 3.
    "grpo": Choices(
        clip_low=0.2,
        clip_high=0.2,
        ratio_level="token",
        length_norm="sequence",
        scale_advantages=True,
    ),
    # Understanding R1-Zero-like training, arXiv:2503.20783, section 3.2.
    "dr_grpo": Choices(
        clip_low=0.2,
        clip_high=0.2,
        ratio_level="token",
        length_norm="constant",
        scale_advantages=False,
    ),
    # DAPO, arXiv:2503.14476, equation 8 and section 4.1.
    "dapo": Choices(
        clip_low=0.2,
        clip_high=0.28,
        ratio_level="token",
        length_norm="token",
        scale_advantages=True,
    ),
    # GSPO, arXiv:2507.18071, equation 5 and section 5.1.
    "gspo": Choices(
        clip_low=3e-4,
        clip_high=4e-4,
        ratio_level="geometric",
        length_norm="sequence",
        scale_advantages=True,
    ),
}
