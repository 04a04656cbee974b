"""A short trial of the engine, so that the learner can place a node that never worked."""

from typing import Final

import structlog
import trio

from echo2swarm.system.errors import ChildError
from node.engine.base import EngineDownError, RolloutEngine
from protocols.leases import MAX_SAMPLES_PER_GROUP, LeasedGroup, SampleSpec
from protocols.packed import pack_tokens, unpack_tokens
from protocols.sampling import SamplingParams

TRIAL_S: Final = 2.0
"""About how long the larger of two calls may take."""
MAX_TOKENS: Final = 32
"""Of each completion."""
_PROMPT: Final = (0,) * 8
"""Tokens that every vocabulary has; what they mean does not matter."""

log = structlog.get_logger()


class Calibration:
    """Times the engine once.

    Args:
        engine: which has a policy.
        max_batch: completions that it is given at once when it works.
    """

    def __init__(self, engine: RolloutEngine, *, max_batch: int) -> None:
        self._engine = engine
        self._max_batch = min(max_batch, MAX_SAMPLES_PER_GROUP)
        self._is_done = False
        self._tokens_per_s: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether it was tried, with whatever result."""
        return self._is_done

    @property
    def tokens_per_s(self) -> float | None:
        """What the engine did; None if it was not tried, or failed."""
        return self._tokens_per_s

    async def run(self, sampling: SamplingParams) -> None:
        """Time the engine: one completion, then as many at once as it seems to take quickly.

        Raises:
            EngineDownError: it is gone; then this may be done again.
        """
        short = SamplingParams(
            temperature=sampling.temperature,
            max_new_tokens=min(sampling.max_new_tokens, MAX_TOKENS),
            stop_token_ids=sampling.stop_token_ids,
        )
        try:
            tokens_per_s, took_s = await self._time(1, short)
            number = int(min(self._max_batch, TRIAL_S / took_s)) if took_s > 0 else self._max_batch
            if number > 1:
                # A single one may have been slowed by whatever the first call has to set up.
                tokens_per_s = max(tokens_per_s, (await self._time(number, short))[0])
        except EngineDownError:
            raise
        except ChildError as exc:
            log.warning("calibration.failed", error=str(exc))
        else:
            self._tokens_per_s = tokens_per_s
            log.info("calibration.done", tokens_per_s=round(tokens_per_s, 1))
        self._is_done = True

    async def _time(self, number: int, sampling: SamplingParams) -> tuple[float, float]:
        """Return tokens per second and seconds of one call."""
        samples = tuple(SampleSpec(index, seed=index) for index in range(number))
        group = LeasedGroup(0, pack_tokens(_PROMPT), samples)
        started_s = trio.current_time()
        generated = await self._engine.generate([group], sampling)
        took_s = trio.current_time() - started_s
        num_tokens = sum(len(unpack_tokens(each.tokens)) for each in generated.completions)
        return num_tokens / max(took_s, 1e-3), took_s
