"""The process that looks at a task before a run: ``python -m learner.scoring.check_worker``."""

from echo2swarm.processes.worker import OnProgress, serve_parent
from learner.scoring.checking import CheckTask, TaskChecked
from learner.tasks.base import ChecksAnswers
from learner.tasks.registry import open_task


def handle_check(call: CheckTask, _on_progress: OnProgress) -> TaskChecked:
    """Check a task.

    Raises:
        ConfigError: it can't be done.
    """
    task, _ = open_task(call.task, seed=call.seed)
    if not isinstance(task, ChecksAnswers):
        return TaskChecked(0, 0)
    return TaskChecked(*task.check_answers(limit_s=call.limit_s))


if __name__ == "__main__":
    serve_parent(CheckTask, handle_check)
