"""Sampling as much at once as memory has room for, found out by trying."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from node.engine.messages import Completion
from node.engine.transformers_decode import DecodeBatch, plan_batches
from protocols.leases import LeasedGroup

_RETRY_AFTER: Final = 64
"""Batches without a shortage, after which twice as much is tried again: it may have been another
program's, for a while."""


class MemoryLimit:
    """Plans batches, and makes them smaller when one of them finds no memory.

    Args:
        max_rows: most completions in a batch.
        max_tokens: most tokens that its cache may come to hold.
        on_shortage: called after a shortage, before the next attempt, with what that may hold.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_tokens: int,
        on_shortage: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._max_rows = max_rows
        self._most_tokens = self._max_tokens = max_tokens
        self._on_shortage = on_shortage
        self._num_without_shortage = 0

    @property
    def max_tokens(self) -> int:
        """What there seems to be room for now."""
        return self._max_tokens

    def sample(
        self,
        groups: Sequence[LeasedGroup],
        attempt: Callable[[DecodeBatch], list[Completion]],
        *,
        max_new_tokens: int,
    ) -> Iterator[list[Completion]]:
        """Yield the completions of ``groups``, some at a time.

        Args:
            groups: what to sample.
            attempt: samples one batch; what it makes depends on seeds, not on the company.
            max_new_tokens: of each completion.

        Raises:
            MemoryError: not even a single completion finds room.
        """
        planned = list(
            plan_batches(
                groups,
                max_new_tokens=max_new_tokens,
                max_rows=self._max_rows,
                max_tokens=self._max_tokens,
            )
        )[::-1]
        while planned:
            batch = planned.pop()
            num_tokens = batch.num_tokens(max_new_tokens)
            # A later one may be planned by what was believed before.
            is_too_large = num_tokens > self._max_tokens and len(batch.rows) > 1
            made = None if is_too_large else _tried(batch, attempt)
            if made is not None:
                self._went_well()
                yield made
                continue
            if len(batch.rows) == 1:
                raise MemoryError(
                    f"out of memory with a single completion of {num_tokens} tokens, its prompt "
                    "included"
                )
            if not is_too_large:
                self._max_tokens = max(1, num_tokens // 2)
                self._num_without_shortage = 0
                self._on_shortage(self._max_tokens)
            planned.extend(reversed(batch.halves()))

    def _went_well(self) -> None:
        if self._max_tokens == self._most_tokens:
            return
        self._num_without_shortage += 1
        if self._num_without_shortage >= _RETRY_AFTER:
            self._num_without_shortage = 0
            self._max_tokens = min(self._most_tokens, 2 * self._max_tokens)


def is_shortage(error: BaseException) -> bool:
    """Whether an error of torch's says that there is no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _tried(
    batch: DecodeBatch, attempt: Callable[[DecodeBatch], list[Completion]]
) -> list[Completion] | None:
    """Return what an attempt made; None if it found no memory, all of which is free again."""
    try:
        return attempt(batch)
    except (RuntimeError, MemoryError) as exc:
        if not is_shortage(exc):
            raise
    return None
