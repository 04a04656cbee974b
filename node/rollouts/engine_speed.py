"""How fast the engine is while it works, from what it did lately; without a clock."""

from typing import Final

from echo2swarm.system.rates import WorkingRate

_HALF_LIFE_S: Final = 60.0
"""Of working time, after which a call counts half."""


class EngineSpeed:
    """Tokens per second of work; waiting is left out. Calls may overlap."""

    def __init__(self) -> None:
        self._rate = WorkingRate(_HALF_LIFE_S)
        self._num_calls = 0
        self._num_sampling = 0
        self._num_tokens = 0

    @property
    def num_sampling(self) -> int:
        """Completions that are being made now."""
        return self._num_sampling

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far, whatever became of them."""
        return self._num_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """What it does lately; None before the first call was done."""
        return self._rate.per_s()

    def began(self, num_completions: int, now_s: float) -> None:
        """Note that a call was made."""
        self._num_calls += 1
        self._num_sampling += num_completions
        self._rate.set_working(is_working=True, now_s=now_s)

    def ended(self, num_completions: int, num_tokens: int, now_s: float) -> None:
        """Note that a call was answered, or has failed and brought nothing."""
        self._num_tokens += num_tokens
        self._rate.add(num_tokens, now_s)
        self._num_calls -= 1
        self._num_sampling -= num_completions
        if not self._num_calls:
            self._rate.set_working(is_working=False, now_s=now_s)
