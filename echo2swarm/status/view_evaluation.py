"""What evaluations on held-out prompts say of a run, in the words of ``swarm status``. Pure."""

from protocols.status import Estimate, EvaluationPoint, EvaluationStatus


def evaluation_facts(evaluation: EvaluationStatus | None) -> list[tuple[str, str]]:
    """Return lines for the header: label and text."""
    if evaluation is None:
        return []
    parts = [] if evaluation.newest is None else [_found(evaluation.newest)]
    if evaluation.running_version is not None:
        parts.append(
            f"now of version {evaluation.running_version}: {evaluation.num_done} of "
            f"{evaluation.num_wanted} samples"
        )
    return [("eval", ";  ".join(parts) or "none so far")]


def _found(point: EvaluationPoint) -> str:
    text = (
        f"version {point.version}: mean@{point.samples_per_prompt} {_estimate(point.mean_at_k)}, "
        f"pass@1 {_estimate(point.pass_at_1)}"
    )
    if point.num_prompts < point.num_prompts_wanted:
        text += f" ({point.num_prompts} of {point.num_prompts_wanted} prompts)"
    return text


def _estimate(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
