"""The kinds of work of a run, in the order in which nodes are offered them."""

from learner.evaluation.evaluation_work import EvaluationWork
from learner.evaluation.live import LiveEvaluation
from learner.evaluation.round import RoundPlan
from learner.evaluation.schedule import EvaluationSchedule
from learner.parts import LearnerParts, RunState, content_rules, evaluation_sampling
from learner.rollouts.training_work import TrainingWork
from learner.rollouts.work_kind import WorkKind


def make_evaluation(parts: LearnerParts, state: RunState) -> LiveEvaluation | None:
    """Return the evaluations of a run; None if there are none."""
    config, held_out = parts.config, parts.held_out
    if held_out is None:
        return None
    num_steps, publish_every = config.run.num_steps, config.rollouts.publish_every
    return LiveEvaluation(
        config.eval,
        RoundPlan(
            samples_per_prompt=config.eval.num_samples,
            sampling=evaluation_sampling(config, parts.sampling),
            seed=config.run.seed,
            lease_timeout_s=config.rollouts.lease_timeout_s,
            last_step=num_steps,
        ),
        EvaluationSchedule(
            every_steps=config.eval.every_steps,
            first_version=parts.first_step,
            last_version=num_steps - num_steps % publish_every,
        ),
        held_out=held_out,
        dispatcher=state.dispatcher,
        nodes=state.nodes,
        ledger=parts.ledger,
        progress=state.progress,
        metrics=parts.metrics,
        changes=state.changes,
    )


def make_kinds(
    parts: LearnerParts, state: RunState, evaluation: LiveEvaluation | None
) -> list[WorkKind]:
    """Return the kinds of work; a node gets work of training if no other kind has some for it."""
    training = TrainingWork(
        desk=state.desk,
        rules=content_rules(parts, parts.sampling),
        scorer=parts.scorer,
        gate=state.gate,
        nodes=state.nodes,
        ledger=parts.ledger,
        progress=state.progress,
        changes=state.changes,
    )
    if evaluation is None or parts.held_out is None:
        return [training]
    evaluating = EvaluationWork(
        evaluation=evaluation,
        rules=content_rules(parts, evaluation_sampling(parts.config, parts.sampling)),
        scorer=parts.held_out.scorer,
        ledger=parts.ledger,
        progress=state.progress,
    )
    return [evaluating, training]
