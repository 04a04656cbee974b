"""vLLM's ``LLM``: ``python -m benchmarks.engines.bare_vllm``.

With the options that the engine gives to vLLM, and none of what the engine adds. Beside
``node/engine/vllm_library.py``, this is what knows vLLM; it is no part of a node.
"""

import time
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from benchmarks.engines.bare import BareRan, OpenBare, RunBare, serve_bare
from node.engine.options import VllmOptions, from_argument
from node.engine.vllm_library import engine_arguments
from protocols.packed import unpack_tokens


class BareVllm:
    """A model and nothing else."""

    def __init__(self) -> None:
        self._llm: LLM | None = None

    def open(self, call: OpenBare) -> None:
        """Load the model as the engine does."""
        options = from_argument(VllmOptions, call.options)
        self._llm = LLM(**engine_arguments(Path(call.model_dir), options))

    def run(self, call: RunBare) -> BareRan:
        """Sample; vLLM batches as it likes."""
        assert self._llm is not None, "open comes first"  # noqa: S101
        parameters = SamplingParams(
            n=call.num_samples,
            temperature=call.sampling.temperature,
            max_tokens=call.sampling.max_new_tokens,
            stop_token_ids=list(call.sampling.stop_token_ids),
            ignore_eos=True,
            logprobs=0 if call.has_logprobs else None,
            detokenize=False,
        )
        started_s = time.perf_counter()
        prompts = [TokensPrompt(prompt_token_ids=unpack_tokens(each)) for each in call.prompts]
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - started_s
        num_tokens = sum(len(made.token_ids) for output in outputs for made in output.outputs)
        return BareRan(seconds=seconds, num_tokens=num_tokens)


if __name__ == "__main__":
    serve_bare(BareVllm())
