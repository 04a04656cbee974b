"""One line now and then that says how far the run is, how it does, and how long it will take."""

from collections.abc import Callable
from typing import Any, Final

import structlog
import trio

from echo2swarm.text.format import format_seconds
from protocols.status import StatusReply

EVERY_S: Final = 15.0
MAX_EVERY_S: Final = 300.0
"""Of a run that does not move, there is less to tell."""

log = structlog.get_logger()


def pulse_of(status: StatusReply, *, step_s: float | None) -> dict[str, Any]:
    """Return the fields of the line.

    Args:
        status: of the run now.
        step_s: the usual time from one update to the next; None before there were two.
    """
    num_left = max(0, status.num_steps - status.learner_step)
    num_rollouts = sum(count.num_rollouts for count in status.staleness)
    staleness = sum(count.staleness * count.num_rollouts for count in status.staleness)
    evaluation = status.evaluation and status.evaluation.newest
    return {
        "step": f"{status.learner_step}/{status.num_steps}",
        "reward": None if status.reward_mean is None else round(status.reward_mean, 3),
        "busy": f"{status.busy_share:.0%}",
        "staleness": round(staleness / num_rollouts, 2) if num_rollouts else None,
        "rollouts_per_s": round(status.supplied_rollouts_per_s, 2),
        "nodes": sum(node.is_connected for node in status.nodes),
        "to_go": None if step_s is None else format_seconds(num_left * step_s),
        **(
            {"eval": f"{evaluation.mean_at_k.value:.3f} at {evaluation.version}"}
            if evaluation
            else {}
        ),
    }


async def beat(status: Callable[[], StatusReply], step_s: Callable[[float], float | None]) -> None:
    """Log a line every :data:`EVERY_S`, and more and more seldom while no update is made."""
    told_step, every_s = -1, EVERY_S
    while True:
        await trio.sleep(every_s)
        now = status()
        every_s = EVERY_S if now.learner_step != told_step else min(2 * every_s, MAX_EVERY_S)
        told_step = now.learner_step
        log.info("run.progress", **pulse_of(now, step_s=step_s(trio.current_time())))
