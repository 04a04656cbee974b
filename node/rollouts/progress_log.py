"""Logs now and then what became of a node's rollouts."""

from typing import Final, NoReturn

import structlog
import trio

from node.engine.base import RolloutEngine
from node.rollouts.tally import RefusalTally

LOG_EVERY_S: Final = 10.0

log = structlog.get_logger()


async def log_progress(tally: RefusalTally, engine: RolloutEngine) -> NoReturn:
    """Log the tally whenever it has changed, until cancelled."""
    last = (0, 0)
    while True:
        await trio.sleep(LOG_EVERY_S)
        now = (tally.num_accepted, tally.num_refused)
        if now != last:
            log.info(
                "work.so_far",
                accepted=now[0],
                refused=now[1],
                per_s=round((now[0] - last[0]) / LOG_EVERY_S, 2),
                version=engine.applied_version,
                **({"reasons": tally.refused} if now[1] else {}),
            )
        last = now
