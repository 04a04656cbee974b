"""What a report says of engines: whose rollouts were trained on, and how far they are off."""

from collections.abc import Sequence
from typing import Final

from echo2swarm.report.engine_drift import NodeDrift, by_engine
from echo2swarm.text.format import table_cell

_HEAD: Final = (
    "How far the logprobs that engines told are from those that the learner computed before it "
    "trained on them, of the tokens that had a gradient. What is stale is off by its age as well.",
    "",
    "| engine | node | accepted | trained | tokens compared | mean difference | KL |",
    "|---|---|---:|---:|---:|---:|---:|",
)


def engines_text(contributions: Sequence[NodeDrift]) -> str:
    """Return a table with a line per node, and one per engine that several nodes have."""
    if not contributions:
        return "No rollout is on record."
    rows = []
    for engine in by_engine(contributions):
        theirs = [each for each in contributions if each.engine == engine.engine]
        rows += [_row(each) for each in theirs]
        if len(theirs) > 1:
            rows.append(_row(engine))
    return "\n".join((*_HEAD, *rows))


def _row(each: NodeDrift) -> str:
    return (
        f"| {table_cell(each.engine)} | {table_cell(each.node)} | {each.num_accepted} "
        f"| {each.num_trained} | {each.drift.num_tokens} | {_small(each.drift.mean_difference)} "
        f"| {_small(each.drift.mean_kl)} |"
    )


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
