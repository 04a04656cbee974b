"""Which of a task's fixed number of items are held out for evaluation, and never trained on.

By content, an item is held out if a hash of it says so: whatever else is in a file, and in
which order, an item stays where it is, and what is there twice is held out twice.
"""

import hashlib
import random
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from echo2swarm.system.errors import ConfigError

HeldOutBy = Literal["content", "position"]

_KEY: Final = b"echo2swarm: held out for evaluation"
_HASH_BYTES: Final = 8
_NUM_HASHES: Final = 1 << (8 * _HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Split:
    """Items by their numbers; no item of the one is the same as one of the other."""

    trained: tuple[int, ...]
    held_out: tuple[int, ...]
    """Each once, though an item be there twice."""
    share: float
    """What was asked for."""


def split(contents: Sequence[str], *, share: float, by: HeldOutBy) -> Split:
    """Divide items into those to train on, and those held out.

    Args:
        contents: what tells each item from others; items with the same are the same item.
        share: how many are to be held out: by content, about so many; by position, exactly,
            rounded down.
        by: "position" for runs that were begun so.

    Raises:
        ConfigError: nothing is left to train on.
    """
    if by == "position":
        return _by_position(len(contents), share)
    trained: list[int] = []
    held_out: dict[str, int] = {}
    for number, content in enumerate(map(normalized, contents)):
        if is_held_out(content, share):
            held_out.setdefault(content, number)
        else:
            trained.append(number)
    if contents and not trained:
        raise ConfigError(
            f"task.held_out_share: with {share:g} of {len(contents)} prompts, all are held out for "
            "evaluation; set it to 0, or give the task more data"
        )
    return Split(tuple(trained), tuple(held_out.values()), share)


def is_held_out(content: str, share: float) -> bool:
    """Whether an item is held out; the same in every run, and with every larger share."""
    digest = hashlib.blake2b(content.encode(), key=_KEY, digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest) < share * _NUM_HASHES


def normalized(content: str) -> str:
    """Return what two copies of an item have in common, white space and accents aside."""
    return " ".join(unicodedata.normalize("NFC", content).split())


def everything(num_items: int) -> Split:
    """Hold nothing out."""
    return Split(tuple(range(num_items)), (), 0.0)


def _by_position(num_items: int, share: float) -> Split:
    items = list(range(num_items))
    num_held_out = int(share * num_items)
    if num_held_out:
        random.Random("held out").shuffle(items)  # noqa: S311
    trained, held_out = sorted(items[num_held_out:]), sorted(items[:num_held_out])
    return Split(tuple(trained), tuple(held_out), share)


class EpochOrder:
    """Goes through some items again and again, each time in another order.

    Args:
        split: the items.
        seed: decides the order.
        is_held_out: go through those held out, in place of those to train on.
    """

    def __init__(self, split: Split, *, seed: int, is_held_out: bool = False) -> None:
        self._split, self._seed = split, seed
        self._items = items = split.held_out if is_held_out else split.trained
        # Two epochs, since prompts of the one are scored while the next begins.
        self._order = lru_cache(maxsize=2)(lambda epoch: _shuffled(len(items), seed, epoch))

    def __len__(self) -> int:
        """Return how many items an epoch has."""
        return len(self._items)

    def __getitem__(self, index: int) -> int:
        """Return the item that is number ``index`` of the run."""
        epoch, place = divmod(index, len(self._items))
        return self._items[self._order(epoch)[place]]

    def items(self) -> Iterable[int]:
        """Return the items that an epoch has."""
        return self._items

    def held_out(self) -> "EpochOrder":
        """Return the order of the items that this one leaves out.

        Raises:
            ConfigError: there are none.
        """
        split = self._split
        if not split.held_out:
            raise ConfigError(
                f"task.held_out_share: with {split.share:g} of {len(split.trained)} prompts, none "
                "is held out for evaluation; set it higher, and train with that"
            )
        return EpochOrder(split, seed=self._seed, is_held_out=True)


def _shuffled(num_items: int, seed: int, epoch: int) -> list[int]:
    order = list(range(num_items))
    # Seeded with text, so that neighbouring seeds and epochs have nothing in common.
    random.Random(f"epoch {epoch} of seed {seed}").shuffle(order)  # noqa: S311
    return order
