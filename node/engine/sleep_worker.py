"""The engine that waits instead of computing: for benchmarks of the swarm around it.

Run as ``python -m node.engine.sleep_worker OPTIONS``. Its completions are valid
in form (tokens of the vocabulary, finite logprobs, honest finish reasons), but
random: a run with it trains nothing.
"""

import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from echo2swarm.processes.worker import Cancellations, OnProgress, serve_parent
from node.engine.messages import (
    Completion,
    Describe,
    Description,
    EngineCall,
    Generate,
    Generated,
    LoadPolicy,
    PolicyLoaded,
)
from node.engine.options import SleepOptions, from_argument
from protocols.leases import SampleSpec
from protocols.packed import pack_floats, pack_tokens
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams

_TICK_S: Final = 0.25
"""How often progress is told."""


class SleepEngine:
    """Answers the node's calls."""

    def __init__(
        self, options: SleepOptions, check_wanted: Callable[[], None] = lambda: None
    ) -> None:
        self._options = options
        self._check_wanted = check_wanted
        self._version: int | None = None
        self._vocab_size = 0

    def handle(
        self, call: EngineCall, on_progress: OnProgress
    ) -> Description | PolicyLoaded | Generated:
        """Answer one call; if it raises, the engine is as it was before."""
        match call:
            case Describe():
                return Description("sleep", f"none, {self._options.rollouts_per_s:g} rollouts/s")
            case LoadPolicy():
                return self._load(call)
            case Generate():
                return self._generate(call, on_progress)

    def _load(self, call: LoadPolicy) -> PolicyLoaded:
        if not any(Path(call.weights_dir).glob("*.safetensors")):
            raise ValueError(f"no .safetensors file in {call.weights_dir}")
        vocab_size = self._options.vocab_size or _vocab_size(Path(call.assets_dir))
        time.sleep(self._options.load_s)
        self._version, self._vocab_size = call.version, vocab_size
        return PolicyLoaded(call.version, self._options.load_s)

    def _generate(self, call: Generate, on_progress: OnProgress) -> Generated:
        if self._version is None:
            raise RuntimeError("no policy is loaded")
        start_s = time.monotonic()
        num_wanted = sum(len(group.samples) for group in call.groups)
        end_s = start_s + num_wanted / self._options.rollouts_per_s * self._factor(call)
        while (left_s := end_s - time.monotonic()) > 0:
            self._check_wanted()
            time.sleep(min(left_s, _TICK_S))
            done = (time.monotonic() - start_s) / (end_s - start_s)
            on_progress("sleeping", min(1.0, done) * num_wanted, num_wanted)
        stops = call.sampling.stop_token_ids
        plain = sorted(set(range(self._vocab_size)).difference(stops))
        if not plain:
            raise ValueError("every token of the vocabulary is a stop token")
        completions = tuple(
            self._complete(group.group_id, sample, call.sampling, self._version, plain)
            for group in call.groups
            for sample in group.samples
        )
        return Generated(completions, time.monotonic() - start_s)

    def _factor(self, call: Generate) -> float:
        """Return by how much longer than on average this call takes: lognormal, of mean 1."""
        if not self._options.spread:
            return 1.0
        variance = math.log1p(self._options.spread**2)
        seed = call.groups[0].samples[0].seed if call.groups and call.groups[0].samples else 0
        rng = random.Random(seed)  # noqa: S311 - not a secret
        return rng.lognormvariate(-variance / 2, math.sqrt(variance))

    def _complete(
        self,
        group_id: int,
        sample: SampleSpec,
        sampling: SamplingParams,
        version: int,
        plain: Sequence[int],
    ) -> Completion:
        rng = random.Random(sample.seed)  # noqa: S311 - not a secret
        num_tokens = sampling.max_new_tokens
        if sampling.stop_token_ids:
            num_tokens = min(num_tokens, self._options.num_tokens)
        tokens = rng.choices(plain, k=num_tokens)
        is_cut_off = num_tokens == sampling.max_new_tokens
        if not is_cut_off:
            tokens[-1] = rng.choice(sampling.stop_token_ids)
        return Completion(
            group_id=group_id,
            sample_index=sample.index,
            tokens=pack_tokens(tokens),
            logprobs=pack_floats([-math.log(self._vocab_size)] * num_tokens),
            finish_reason=FinishReason.LENGTH if is_cut_off else FinishReason.STOP,
            oldest_version=version,
            newest_version=version,
        )


def _vocab_size(assets_dir: Path) -> int:
    config = json.loads((assets_dir / "config.json").read_bytes())
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 2:
        raise ValueError("the model's config has no vocab_size; set the engine option vocab_size")
    return vocab_size


def main() -> None:
    """Serve the parent until it is gone."""
    cancellations = Cancellations()
    engine = SleepEngine(from_argument(SleepOptions, sys.argv[1]), cancellations.check)
    serve_parent(EngineCall, engine.handle, cancellations=cancellations)  # type: ignore[arg-type]  # a union is no type[R]


if __name__ == "__main__":
    main()
