"""``generate`` of transformers: ``python -m benchmarks.engines.bare_transformers``.

As its documentation has it: one batch, padded on the left. Logprobs are those of
``compute_transition_scores``.
"""

import os
import time
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.engines.bare import BareRan, OpenBare, RunBare, serve_bare
from node.engine.options import TransformersOptions, from_argument
from node.engine.transformers_worker import choose_device, choose_dtype
from protocols.packed import unpack_tokens

_PAD: Final = 0


class BareTransformers:
    """A model and nothing else."""

    def __init__(self) -> None:
        self._model: Any = None

    def open(self, call: OpenBare) -> None:
        """Load the model as the engine has it: on the same device, of the same type."""
        options = from_argument(TransformersOptions, call.options)
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        device = choose_device(options.device)
        model: Any = AutoModelForCausalLM.from_pretrained(
            call.model_dir, dtype=choose_dtype(options.dtype, device), local_files_only=True
        )
        self._model = model.to(device)
        model.train(False)
        # What a model's authors cut off of its distribution is not cut off here.
        model.generation_config = GenerationConfig()

    @torch.inference_mode()
    def run(self, call: RunBare) -> BareRan:
        """Sample, all completions in one batch."""
        assert self._model is not None, "open comes first"  # noqa: S101
        model, device = self._model, self._model.device
        started_s = time.perf_counter()
        prompts = [unpack_tokens(prompt) for prompt in call.prompts]
        width = max(map(len, prompts))
        padded = [[_PAD] * (width - len(prompt)) + prompt for prompt in prompts]
        is_token = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        stops = list(call.sampling.stop_token_ids)
        made = model.generate(
            input_ids=torch.tensor(padded, device=device),
            attention_mask=torch.tensor(is_token, device=device),
            do_sample=True,
            temperature=call.sampling.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=call.sampling.max_new_tokens,
            num_return_sequences=call.num_samples,
            eos_token_id=stops or None,
            pad_token_id=_PAD,
            return_dict_in_generate=True,
            output_scores=call.has_logprobs,
        )
        sampled = made.sequences[:, width:]
        if call.has_logprobs:
            model.compute_transition_scores(
                made.sequences, made.scores, normalize_logits=True
            ).tolist()
        rows = sampled.tolist()
        seconds = time.perf_counter() - started_s
        return BareRan(seconds=seconds, num_tokens=sum(num_until(row, stops) for row in rows))


def num_until(tokens: list[int], stops: list[int]) -> int:
    """Return how many tokens there are up to the first that is a stop, and with it."""
    return next((n for n, token in enumerate(tokens, 1) if token in stops), len(tokens))


if __name__ == "__main__":
    serve_bare(BareTransformers())
