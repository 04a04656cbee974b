"""Prompts that wait to be leased: long ones go to fast nodes, short ones to slow nodes."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Final

from echo2swarm.scheduling.leases.groups import QueuedPrompt

WINDOW: Final = 32
"""Only so many are chosen among: the order stays nearly that of the run."""
MAX_PASSED: Final = 64
"""So often another prompt goes before the first one; then that one is next."""


class PromptQueue:
    """Prompts in the order of the run, from which one of the first few is taken."""

    def __init__(self) -> None:
        self._window: list[QueuedPrompt] = []
        self._lengths: list[int] = []
        """Of those in the window, in order."""
        self._rest: deque[QueuedPrompt] = deque()
        self._num_passed = 0

    def __len__(self) -> int:
        return len(self._window) + len(self._rest)

    def extend(self, prompts: Iterable[QueuedPrompt]) -> None:
        """Queue prompts."""
        self._rest.extend(prompts)
        self._refill()

    def choose(self, speed_rank: float | None) -> QueuedPrompt | None:
        """Return the prompt that suits a node, and leave it here.

        Args:
            speed_rank: 0 for the slowest node, 1 for the fastest; None for any other: it
                gets the first prompt.
        """
        if not self._window:
            return None
        if speed_rank is None or self._num_passed >= MAX_PASSED:
            return self._window[0]
        wanted = self._lengths[round(speed_rank * (len(self._lengths) - 1))]
        return next(prompt for prompt in self._window if len(prompt.tokens) == wanted)

    def remove(self, prompt: QueuedPrompt) -> None:
        """Remove a prompt that was chosen."""
        is_first = prompt is self._window[0]
        self._num_passed = 0 if is_first else self._num_passed + 1
        self._window.remove(prompt)
        del self._lengths[bisect_left(self._lengths, len(prompt.tokens))]
        self._refill()

    def _refill(self) -> None:
        while self._rest and len(self._window) < WINDOW:
            prompt = self._rest.popleft()
            self._window.append(prompt)
            insort(self._lengths, len(prompt.tokens))
