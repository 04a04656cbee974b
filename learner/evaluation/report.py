"""Results of an evaluation, for people and for programs."""

from collections.abc import Sequence
from typing import Any

import msgspec

from learner.evaluation.evaluator import Rewards
from learner.evaluation.statistics import Figures, Interval95, figures, paired_difference
from learner.export.source import RunSource


def as_json(run: RunSource, results: Sequence[Rewards]) -> dict[str, Any]:
    """Return everything that was found."""
    baseline = results[0]
    models = []
    for result in results:
        record = {
            "model": result.label,
            **msgspec.to_builtins(_figures(result)),
            "num_tokens": result.num_tokens,
            "num_failed": result.num_failed,
        }
        if result is not baseline:
            difference = paired_difference(result.sampled_NK, baseline.sampled_NK)
            record["mean_difference"] = msgspec.to_builtins(difference)
            record["compared_with"] = baseline.label
        models.append(record)
    return {
        "run_id": run.run_dir.run_id,
        "config_sha256": run.config_sha256,
        "task": run.config.task,
        "confidence": 0.95,
        "models": models,
    }


def as_table(run: RunSource, results: Sequence[Rewards], *, width: int) -> str:
    """Return the same as a table; or, where that is wider than ``width``, model by model."""
    found = [_figures(result) for result in results]
    num_samples = found[0].samples_per_prompt
    head = ["model", f"mean@{num_samples}", "pass@1", f"pass@{num_samples}"]
    has_greedy = found[0].greedy_accuracy is not None
    head += ["greedy"] if has_greedy else []
    head += [f"mean against {results[0].label}"] if len(results) > 1 else []
    rows = [head]
    for result, own in zip(results, found, strict=True):
        row = [result.label, *map(_text, (own.mean_at_k, own.pass_at_1, own.pass_at_k))]
        if own.greedy_accuracy is not None:
            row.append(_text(own.greedy_accuracy))
        if len(results) > 1:
            is_first = result is results[0]
            difference = paired_difference(result.sampled_NK, results[0].sampled_NK)
            row.append("" if is_first else _text(difference, signed=True))
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if max(map(len, lines)) > width:
        lines = model_by_model(head, rows[1:])
    lines.append("")
    lines.append(
        f"{found[0].num_prompts} held-out prompts of {run.run_dir.run_id}, {num_samples} samples "
        "each; [95 % intervals]"
    )
    num_failed = sum(result.num_failed for result in results)
    if num_failed:
        lines.append(f"the verifier failed on {num_failed} completions, which count as 0")
    return "\n".join(lines)


def model_by_model(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return what a table has, a line for each figure below its model."""
    (_, *names), lines = head, []
    longest = max(map(len, names))
    for model, *values in rows:
        lines.append(model)
        told = zip(names, values, strict=True)
        lines += [f"  {name:{longest}}  {value}" for name, value in told if value]
    return lines


def _figures(result: Rewards) -> Figures:
    return figures(result.sampled_NK, result.greedy_N)


def _text(estimate: Interval95, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{estimate.value:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"
