"""Keeps the dispatcher supplied with prompts, drawn from the scorer ahead of need."""

from collections.abc import Iterable, Sequence
from typing import Final

import structlog
import trio

from echo2swarm.bell import Bell
from echo2swarm.dispatch.dispatcher import Dispatcher
from echo2swarm.errors import SwarmError
from learner.ports import Scorer
from learner.scoring.messages import Prompt
from protocols.leases import MAX_PROMPT_TOKENS

MAX_DRAWN: Final = 64
"""At once; the scorer scores in between."""

log = structlog.get_logger()


async def feed_prompts(
    scorer: Scorer,
    dispatcher: Dispatcher,
    bell: Bell,
    *,
    next_prompt: int,
    skipped: Sequence[int] = (),
) -> None:
    """Draw the prompts that an earlier process left out, then from ``next_prompt`` on.

    Raises:
        SwarmError: there are none, or none that fit.
        ChildError: the scorer failed for good.
    """
    for index in skipped:
        while not dispatcher.num_prompts_wanted:
            await bell.next_ring.wait()
        dispatcher.add_prompts(_usable(await scorer.draw(index, 1)))
        bell.ring()
    num_fruitless = 0
    while True:
        ring = bell.next_ring
        wanted = min(MAX_DRAWN, dispatcher.num_prompts_wanted)
        if not wanted:
            await ring.wait()
            continue
        drawn = await scorer.draw(next_prompt, wanted)
        if not drawn:
            raise SwarmError(
                f"the task has no prompt number {next_prompt}; give it more data, or train for "
                "fewer steps"
            )
        next_prompt += len(drawn)
        usable = _usable(drawn)
        if len(usable) < len(drawn):
            log.warning("prompts.skipped", count=len(drawn) - len(usable), why="empty or too long")
        num_fruitless = 0 if usable else num_fruitless + 1
        if num_fruitless > 10:
            raise SwarmError("the task's prompts are all empty or too long")
        dispatcher.add_prompts(usable)
        bell.ring()
        await trio.lowlevel.checkpoint()


def _usable(prompts: Iterable[Prompt]) -> list[Prompt]:
    return [p for p in prompts if 1 <= len(p.tokens) // 4 <= MAX_PROMPT_TOKENS]
