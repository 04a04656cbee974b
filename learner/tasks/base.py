"""The port that every task has, and what tasks have in common."""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import msgspec

from echo2swarm.errors import ConfigError
from learner.config import Table


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: str
    content: str


PromptText = str | tuple[Turn, ...]
"""Plain text, or a chat that is rendered with the model's own template."""


class Task(Protocol):
    """Prompts without end, numbered from 0, and a verifier.

    The same seed and index always give the same prompt, also in another process: a scorer
    that died is started again, and scores completions of prompts that it never drew.
    """

    @property
    def description(self) -> str:
        """What the task is, in one line for people."""
        ...

    @property
    def num_prompts(self) -> int | None:
        """How many different prompts there are; None where new ones are made without end."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts at which a completion ends; what follows, and they themselves, are not scored."""
        ...

    def prompt(self, index: int) -> PromptText:
        """Return prompt number ``index`` of the run."""
        ...

    def score(self, index: int, completion: str) -> float:
        """Return the reward of ``completion``, which answers prompt ``index``; finite.

        What it raises is recorded, and that completion alone is left out.
        """
        ...


class TaskOptions(Table, frozen=True, kw_only=True):
    """What every ``[task]`` table may contain."""

    kind: str
    """Which task: "arithmetic", "sort_digits", "reasoning_gym", "jsonl", "function", or one that
    an installed package brings."""
    score_limit_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    """A completion that takes longer to score is left out, and counted."""
    held_out_share: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.1
    """Share of the prompts that are never trained on, for evaluation; rounded down. Where prompts
    are made without end, those of an evaluation are others anyway (docs/evaluate.md)."""

    path_keys: ClassVar[tuple[str, ...]] = ()
    """Options that are paths; where relative, they start from the configuration's folder."""


class TaskKind(Protocol):
    """What a module, or any object, must have to be a kind of task."""

    Options: type[TaskOptions]

    def open_task(self, options: Any, *, seed: int) -> Task:  # noqa: ANN401  # of its own kind
        """Make the task ready.

        Raises:
            ConfigError: an option does not fit the data; the message names both.
        """
        ...


@runtime_checkable
class HoldsOut(Protocol):
    """A task with a fixed number of prompts, of which it keeps some back."""

    def held_out(self) -> Task:
        """Return the task of the prompts that are never trained on."""
        ...


class EpochOrder:
    """Goes through ``num_items`` items again and again, each time in another order.

    Args:
        num_items: how many there are.
        seed: decides the order.
        held_out_share: so many of them, rounded down, are left out: the same for every seed, so
            that runs can be compared.
        is_held_out: go through those that are left out instead.
    """

    def __init__(
        self,
        num_items: int,
        *,
        seed: int,
        held_out_share: float = 0.0,
        is_held_out: bool = False,
    ) -> None:
        self._arguments = (num_items, seed, held_out_share)
        items = list(range(num_items))
        num_held_out = int(held_out_share * num_items)
        if num_held_out:
            random.Random("held out").shuffle(items)  # noqa: S311
            items = sorted(items[:num_held_out] if is_held_out else items[num_held_out:])
        elif is_held_out:
            items = []
        self._items = items
        # Two epochs, since prompts of the one are scored while the next begins.
        self._order = lru_cache(maxsize=2)(lambda epoch: _shuffled(len(items), seed, epoch))

    def __len__(self) -> int:
        """Return how many items an epoch has."""
        return len(self._items)

    def __getitem__(self, index: int) -> int:
        """Return the item that is number ``index`` of the run."""
        epoch, place = divmod(index, len(self._items))
        return self._items[self._order(epoch)[place]]

    def held_out(self) -> "EpochOrder":
        """Return the order of the items that this one leaves out.

        Raises:
            ConfigError: there are none.
        """
        num_items, seed, share = self._arguments
        order = EpochOrder(num_items, seed=seed, held_out_share=share, is_held_out=True)
        if not len(order):
            raise ConfigError(
                f"task.held_out_share: with {share:g} of {num_items} prompts, none is held out for "
                "evaluation; set it higher, and train with that"
            )
        return order


def _shuffled(num_items: int, seed: int, epoch: int) -> list[int]:
    order = list(range(num_items))
    # Seeded with text, so that neighbouring seeds and epochs have nothing in common.
    random.Random(f"epoch {epoch} of seed {seed}").shuffle(order)  # noqa: S311
    return order


def seed_of(*parts: object) -> int:
    """Return a number below 2**31 that is as good as random, and the same for the same parts."""
    return random.Random(" ".join(map(str, parts))).randrange(2**31)  # noqa: S311
