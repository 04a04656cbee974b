"""The embedded engine's child process: a Hugging Face model on CPU or any GPU.

Run as ``python -m node.engine.transformers_worker OPTIONS``. Torch and
transformers are imported by the ``transformers_*`` modules here, and nowhere else in ``node``.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
import transformers
from transformers import PreTrainedModel

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
from node.engine.options import TransformersOptions, from_argument, num_engine_threads
from node.engine.transformers_decode import Decoder
from node.engine.transformers_memory import MemoryLimit
from node.engine.transformers_model import TornWeightsError, build_model, replace_weights
from protocols.leases import LeasedGroup
from protocols.packed import unpack_tokens

Answer = Description | PolicyLoaded | Generated


def choose_device(name: str) -> torch.device:
    """Return the device that ``name`` means; ``auto`` takes a GPU if there is one.

    Raises:
        ValueError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        found = f"{num_gpus} that torch {torch.__version__} can use" if num_gpus else "none"
        raise ValueError(f"no GPU {name} here, there are {found}; choose another --device")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the type to compute in.

    On a CPU without instructions for it, bfloat16 is several times slower than float32.
    """
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type != "cpu":
        return torch.bfloat16
    capabilities = torch.cpu.get_capabilities()
    is_fast = capabilities.get("amx_bf16", False) or capabilities.get("avx512_bf16", False)
    return torch.bfloat16 if is_fast else torch.float32


def describe_device(device: torch.device, dtype: torch.dtype) -> str:
    """Return what the swarm's status shows."""
    kind = str(dtype).removeprefix("torch.")
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {kind}"
    return f"{device}, {torch.get_num_threads()} threads, {kind}"


class TransformersEngine:
    """Answers the node's calls."""

    def __init__(
        self, options: TransformersOptions, check_wanted: Callable[[], None] = lambda: None
    ) -> None:
        self._options = options
        self._check_wanted = check_wanted
        self._model: PreTrainedModel | None = None
        self._config: bytes = b""
        self._version = -1
        self._limit = MemoryLimit(
            max_rows=options.max_batch,
            max_tokens=options.batch_tokens,
            on_shortage=self._on_shortage,
        )

    @cached_property
    def _device(self) -> torch.device:
        # Not before the first call, which can be answered with what is wrong with it.
        device = choose_device(self._options.device)
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(self._options.gpu_memory_share, device)
        return device

    @cached_property
    def _dtype(self) -> torch.dtype:
        return choose_dtype(self._options.dtype, self._device)

    def handle(
        self, call: EngineCall, on_progress: OnProgress
    ) -> Description | PolicyLoaded | Generated:
        """Answer one call; if it raises, the engine is as it was before."""
        match call:
            case Describe():
                return Description(
                    "transformers",
                    describe_device(self._device, self._dtype),
                    transformers.__version__,
                )
            case LoadPolicy():
                return self._load(call)
            case Generate():
                return self._generate(call, on_progress)

    def _on_shortage(self, max_tokens: int) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        said = f"memory is short: from now on at most {max_tokens} tokens in a batch"
        print(said, file=sys.stderr, flush=True)  # noqa: T201 - the child's log

    def _load(self, call: LoadPolicy) -> PolicyLoaded:
        start_s = time.monotonic()
        assets_dir, weights_dir = Path(call.assets_dir), Path(call.weights_dir)
        config = (assets_dir / "config.json").read_bytes()
        model = self._model
        if model is None or config != self._config:
            model = build_model(assets_dir, weights_dir, device=self._device, dtype=self._dtype)
        try:
            replace_weights(model, weights_dir)
        except TornWeightsError as exc:
            if model is not self._model:
                raise
            # Neither the old version nor the new one: only a fresh process will do.
            print(exc, file=sys.stderr, flush=True)  # noqa: T201 - the child's log
            os._exit(1)
        self._model, self._config, self._version = model, config, call.version
        return PolicyLoaded(call.version, time.monotonic() - start_s)

    def _generate(self, call: Generate, on_progress: OnProgress) -> Generated:
        if self._model is None:
            raise RuntimeError("no policy is loaded")
        start_s = time.monotonic()
        check_prompts(self._model, call.groups, max_new_tokens=call.sampling.max_new_tokens)
        decoder = Decoder(self._model, self._check_wanted)
        num_wanted = sum(len(group.samples) for group in call.groups)
        completions: list[Completion] = []
        self._check_wanted()
        for made in self._limit.sample(
            call.groups,
            lambda batch: decoder.sample(batch, call.sampling, version=self._version),
            max_new_tokens=call.sampling.max_new_tokens,
        ):
            completions += made
            on_progress("sampling", len(completions), num_wanted)
        return Generated(tuple(completions), time.monotonic() - start_s)


def check_prompts(
    model: PreTrainedModel, groups: tuple[LeasedGroup, ...], *, max_new_tokens: int
) -> None:
    """Refuse prompts that the model can't take; on a GPU one bad token would end the process.

    Raises:
        ValueError: a token is not in the vocabulary, or prompt and completion are too long.
    """
    vocab_size = cast("torch.nn.Embedding", model.get_input_embeddings()).num_embeddings
    context = getattr(model.config, "max_position_embeddings", None)
    for group in groups:
        prompt = unpack_tokens(group.prompt_tokens)
        if max(prompt) >= vocab_size:
            raise ValueError(f"prompt token {max(prompt)}, but the vocabulary has {vocab_size}")
        if context is not None and len(prompt) + max_new_tokens > context:
            raise ValueError(
                f"prompt of {len(prompt)} and {max_new_tokens} new tokens, "
                f"but the model takes {context}"
            )


def main() -> None:
    """Serve the parent until it is gone."""
    options = from_argument(TransformersOptions, sys.argv[1])
    torch.set_num_threads(num_engine_threads(options.threads))
    cancellations = Cancellations()
    engine = TransformersEngine(options, cancellations.check)
    serve_parent(EngineCall, engine.handle, cancellations=cancellations)  # type: ignore[arg-type]  # a union is no type[R]


if __name__ == "__main__":
    main()
