"""How far what engines say they sampled from is from what the learner computes: by node, by engine.

Engines compute with other kernels, in other batches, and perhaps in another type than the
learner: their logprobs are never quite its own. What is told is of the tokens that were
trained on with a gradient, every token counting alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NUM_TOKENS, _DRIFT, _KL = "num_tokens", "drift_mean", "kl_behaviour_prox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Of some tokens."""

    num_tokens: int = 0
    sum_difference: float = 0.0
    sum_kl: float = 0.0

    @property
    def mean_difference(self) -> float | None:
        """Mean absolute difference of logprobs; None without tokens."""
        return self.sum_difference / self.num_tokens if self.num_tokens else None

    @property
    def mean_kl(self) -> float | None:
        """Mean estimate of the divergence between engine and learner; None without tokens."""
        return self.sum_kl / self.num_tokens if self.num_tokens else None

    def __add__(self, other: "Drift") -> "Drift":
        """Return that of both together."""
        return Drift(
            num_tokens=self.num_tokens + other.num_tokens,
            sum_difference=self.sum_difference + other.sum_difference,
            sum_kl=self.sum_kl + other.sum_kl,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrift:
    """What one node, or all nodes with one engine, brought to training."""

    engine: str
    """With its version, as the node told it."""
    node: str
    num_accepted: int
    """Rollouts."""
    num_trained: int
    drift: Drift

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {
            "engine": self.engine,
            "node": self.node,
            "num_accepted": self.num_accepted,
            "num_trained": self.num_trained,
            "num_tokens_compared": self.drift.num_tokens,
            "drift_mean": self.drift.mean_difference,
            "kl_mean": self.drift.mean_kl,
        }


def drift_of_nodes(records: Iterable[Mapping[str, Any]]) -> dict[str, Drift]:
    """Return what the lines of ``metrics.jsonl`` tell of each node.

    Of a step done again after a crash, the last line counts; what is not of the form is left out.
    """
    by_step: dict[int, Mapping[str, Any]] = {}
    for record in records:
        step, found = record.get("step"), record.get("drift_by_peer")
        if isinstance(step, int) and isinstance(found, dict):
            by_step[step] = found
    drifts: dict[str, Drift] = {}
    for found in by_step.values():
        for peer, told in found.items():
            drifts[peer] = drifts.get(peer, Drift()) + _drift(told)
    return drifts


def by_engine(contributions: Iterable[NodeDrift]) -> tuple[NodeDrift, ...]:
    """Return those of all nodes with the same engine together, by its name."""
    engines: dict[str, NodeDrift] = {}
    counts: dict[str, int] = {}
    for each in contributions:
        so_far = engines.get(each.engine)
        counts[each.engine] = counts.get(each.engine, 0) + 1
        engines[each.engine] = NodeDrift(
            engine=each.engine,
            node=f"all {counts[each.engine]}" if so_far else each.node,
            num_accepted=each.num_accepted + (so_far.num_accepted if so_far else 0),
            num_trained=each.num_trained + (so_far.num_trained if so_far else 0),
            drift=each.drift + (so_far.drift if so_far else Drift()),
        )
    return tuple(engines[name] for name in sorted(engines))


def _drift(told: object) -> Drift:
    if not isinstance(told, dict):
        return Drift()
    num, difference, kl = (told.get(name) for name in (_NUM_TOKENS, _DRIFT, _KL))
    if not isinstance(num, int | float) or num <= 0:
        return Drift()
    if not isinstance(difference, int | float) or not isinstance(kl, int | float):
        return Drift()
    return Drift(num_tokens=int(num), sum_difference=difference * num, sum_kl=kl * num)
