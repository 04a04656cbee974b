"""Keeps the dispatcher supplied with prompts, drawn from the scorer ahead of need."""

from collections.abc import Container, Iterable, Sequence
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import SwarmError
from learner.scoring.messages import Prompt
from learner.scoring.ports import Scorer
from learner.state.skipped_prompts import LeftOut
from protocols.leases import MAX_PROMPT_TOKENS

MAX_DRAWN: Final = 64
"""At once; the scorer scores in between."""

MAX_FRUITLESS: Final = 640
"""Prompts in a row of which none can be used, after which there are taken to be no others."""
_WHY_NOT: Final = "empty, too long, or held out for evaluation"

log = structlog.get_logger()


async def feed_prompts(
    scorer: Scorer,
    dispatcher: Dispatcher,
    changes: ChangeEvent,
    *,
    next_prompt: int,
    skipped: Sequence[int] = (),
    held_out: Container[bytes] = (),
    max_tokens: int = MAX_PROMPT_TOKENS,
    left_out: LeftOut | None = None,
) -> None:
    """Draw the prompts that an earlier process left out, then from ``next_prompt`` on.

    Args:
        scorer: has the prompts.
        dispatcher: gets them.
        changes: notified when some are wanted, and when there are more.
        next_prompt: the first that was never leased.
        skipped: prompts before it that were not leased either.
        held_out: packed prompts that are never trained on, even if the task has them twice.
        max_tokens: the longest prompt that a completion fits behind.
        left_out: told the prompts that can't be made, or can't be used.

    Raises:
        SwarmError: there are none, or none that fit.
        ChildError: the scorer failed for good.
    """
    left_out = LeftOut() if left_out is None else left_out
    for index in skipped:
        while not dispatcher.num_prompts_wanted:
            await changes.next_change.wait()
        again = await scorer.draw(index, 1)
        dispatcher.add_prompts(_for_training(again.prompts, held_out, max_tokens))
        changes.notify()
    num_fruitless = 0
    while True:
        change = changes.next_change
        wanted = min(MAX_DRAWN, dispatcher.num_prompts_wanted)
        if not wanted:
            await change.wait()
            continue
        drawn = await scorer.draw(next_prompt, wanted)
        num_drawn = len(drawn.prompts) + len(drawn.skipped)
        if not num_drawn:
            raise SwarmError(
                f"the task has no prompt number {next_prompt}; give it more data, or train for "
                "fewer steps"
            )
        next_prompt += num_drawn
        usable = _for_training(drawn.prompts, held_out, max_tokens)
        useful = {prompt.index for prompt in usable}
        left_out.cannot_be_made(drawn.skipped)
        left_out.cannot_be_used([p for p in drawn.prompts if p.index not in useful], _WHY_NOT)
        num_fruitless = 0 if usable else num_fruitless + num_drawn
        if num_fruitless > MAX_FRUITLESS:
            raise SwarmError(f"the task's prompts are all of no use: {left_out.last or _WHY_NOT}")
        dispatcher.add_prompts(usable)
        changes.notify()
        await trio.lowlevel.checkpoint()


def _for_training(
    prompts: Iterable[Prompt], held_out: Container[bytes], max_tokens: int
) -> list[Prompt]:
    return [p for p in usable_prompts(prompts, max_tokens) if p.tokens not in held_out]


def usable_prompts(prompts: Iterable[Prompt], max_tokens: int = MAX_PROMPT_TOKENS) -> list[Prompt]:
    """Return those that a lease can hold, and that a completion fits behind."""
    return [p for p in prompts if 1 <= len(p.tokens) // 4 <= min(max_tokens, MAX_PROMPT_TOKENS)]
