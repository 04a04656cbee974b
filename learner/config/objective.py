"""The objective of an update, resolved: a preset, and what is chosen otherwise."""

from dataclasses import asdict, dataclass
from typing import Any

from learner.config.presets import PRESETS, Importance, KlEstimator, LengthNorm, Level
from learner.config.tables import TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What the loss of a batch is."""

    clip_low: float
    """The policy ratio is clipped at 1 - clip_low where that makes the objective less,"""
    clip_high: float
    """and at 1 + clip_high."""
    ratio_level: Level
    """Of the policy ratio."""
    length_norm: LengthNorm
    scale_advantages: bool
    importance: Importance
    """How it is corrected that another policy sampled the rollouts."""
    importance_level: Level
    """Of the importance weight,"""
    importance_cap: float
    """which is cut off here."""
    mask_below: float
    """Tokens whose importance weight is below this do not count,"""
    mask_above: float
    """or above this."""
    mask_level: Level
    kl_coefficient: float
    kl_estimator: KlEstimator
    dual_clip: float
    """The policy ratio is cut off here where the advantage is negative."""
    off_policy_mask: float
    """Sequences of negative advantage count only if the mean over their tokens of
    log(behaviour / policy) is at most this,"""
    max_drift: float
    """and any sequence only if that of its absolute value is at most this."""

    @property
    def is_masking(self) -> bool:
        """Whether anything can be masked."""
        return self.mask_below > 0 or self.mask_above < float("inf")

    @property
    def is_masking_sequences(self) -> bool:
        """Whether whole sequences can be left out for how they were sampled."""
        return min(self.off_policy_mask, self.max_drift) < float("inf")

    @property
    def is_by_token(self) -> bool:
        """Whether a token's loss needs nothing of the other tokens of its sequence."""
        levels = {self.ratio_level}
        if self.importance == "decoupled":
            levels.add(self.importance_level)
        if self.is_masking:
            levels.add(self.mask_level)
        if self.is_masking_sequences:
            levels.add("sequence")
        return levels == {"token"}


def objective_of(table: TrainerConfig) -> Objective:
    """Return the objective that ``table`` asks for."""
    choices: dict[str, Any] = asdict(PRESETS[table.objective])
    chosen = {name: getattr(table, name) for name in choices}
    choices |= {name: value for name, value in chosen.items() if value is not None}
    return Objective(
        **choices,
        importance=table.importance,
        importance_level=table.importance_level,
        importance_cap=table.importance_cap,
        mask_below=table.mask_below,
        mask_above=float("inf") if table.mask_above is None else table.mask_above,
        mask_level=table.mask_level,
        kl_coefficient=table.kl_coefficient,
        kl_estimator=table.kl_estimator,
        dual_clip=table.dual_clip or float("inf"),
        off_policy_mask=table.off_policy_mask or float("inf"),
        max_drift=table.max_drift or float("inf"),
    )
