"""The scorer process: ``python -m learner.scoring.worker``, started by the learner."""

import msgspec

from echo2swarm.processes.worker import OnProgress, serve_parent
from learner.scoring.messages import DrawPrompts, OpenTask, Score, ScorerCall
from learner.scoring.scorer import TaskScorer


class _Worker:
    def __init__(self) -> None:
        self._scorer: TaskScorer | None = None

    def handle(self, call: ScorerCall, on_progress: OnProgress) -> msgspec.Struct:
        if isinstance(call, OpenTask):
            self._scorer = TaskScorer.open(
                call.task, call.model_dir, seed=call.seed, held_out_from=call.held_out_from
            )
            return self._scorer.describe(self._scorer.check() if call.is_checked else None)
        if self._scorer is None:
            raise RuntimeError(f"{type(call).__name__} before OpenTask")
        match call:
            case DrawPrompts(start, count):
                return self._scorer.draw(
                    start, count, lambda done: on_progress("drawing", done, count)
                )
            case Score(completions):
                return self._scorer.score(
                    completions, lambda done: on_progress("scoring", done, len(completions))
                )


def main() -> None:
    """Answer the learner's calls until it is gone."""
    serve_parent(ScorerCall, _Worker().handle)  # type: ignore[arg-type]  # a union is no type[R]


if __name__ == "__main__":
    main()
