"""Which of the task's prompts training gets."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.lease_rules import NoWork
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.errors import SwarmError
from learner.rollouts.prompts import feed_prompts
from learner.scoring.messages import CompletionToScore, Prompt, Prompts, Reward
from protocols.ids import PeerId, PolicyVersion
from protocols.packed import pack_tokens
from tests.echo2swarm.scheduling.leases.samples import ask, rules


class Scorer:
    """Has the prompts 0 to 9, again and again."""

    async def draw(self, start: int, count: int) -> Prompts:
        await trio.lowlevel.checkpoint()
        return Prompts(
            tuple(Prompt(i, pack_tokens([i % 10]), "") for i in range(start, start + count))
        )

    def wait_of(self, _owner: str) -> str | None:
        return None

    async def score(
        self, completions: Sequence[CompletionToScore], *, owner: str = ""
    ) -> Sequence[Reward]:
        raise NotImplementedError


def prompt(number: int) -> bytes:
    return pack_tokens([number])


async def leased(dispatcher: Dispatcher, *, held_out: frozenset[bytes]) -> set[bytes]:
    """Feed the dispatcher, and return the prompts that it leases at first."""
    dispatcher.version_published(PolicyVersion(0), 0.0)
    with trio.move_on_after(0.2):
        await feed_prompts(
            Scorer(), dispatcher, ChangeEvent(), next_prompt=0, skipped=(3, 4), held_out=held_out
        )
    found: set[bytes] = set()
    for number in range(20):
        lease = dispatcher.grant(ask(PeerId(f"node-{number}")), 0.0)
        if not isinstance(lease, NoWork):
            found |= {group.prompt_tokens for group in lease.groups}
    return found


async def test_training_gets_no_prompt_that_is_held_out(autojump_clock: MockClock) -> None:
    dispatcher = Dispatcher(rules(groups_per_step=8, max_staleness=1, lease_prompts=1))

    found = await leased(dispatcher, held_out=frozenset({prompt(2), prompt(3)}))

    assert {prompt(1), prompt(4)} <= found
    assert not found & {prompt(2), prompt(3)}


async def test_a_task_with_nothing_left_to_train_on_is_an_error(
    autojump_clock: MockClock,
) -> None:
    dispatcher = Dispatcher(rules())

    with pytest.raises(SwarmError, match="held out"):
        await leased(dispatcher, held_out=frozenset(map(prompt, range(10))))
