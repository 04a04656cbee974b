"""What every engine keeps to: real child processes, all kinds.

vLLM is tested where ``ECHO2_VLLM_PYTHON`` names the interpreter of an environment that has it:
``make test-vllm`` makes one.
"""

import math
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
import trio

from echo2swarm.system.errors import ChildError
from node.engine.base import (
    EngineBrokenError,
    EngineDownError,
    EngineEvent,
    EngineExited,
    EngineReady,
    PolicyFiles,
)
from node.engine.messages import Completion
from node.engine.options import (
    OPTIONS_OF,
    EngineOptions,
    SleepOptions,
    TransformersOptions,
    VllmOptions,
)
from node.engine.process import ProcessEngine, engine_spec, open_engine
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_tokens, unpack_floats, unpack_tokens
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams
from tests.node.engine.tiny_policy import VOCAB_SIZE, tiny_model, write_policy

VLLM_PYTHON = os.environ.get("ECHO2_VLLM_PYTHON", "")
OPTIONS: dict[str, EngineOptions] = {
    "sleep": SleepOptions(rollouts_per_s=1000, num_tokens=4),
    "transformers": TransformersOptions(device="cpu", threads=1, max_batch=3),
    "vllm": VllmOptions(
        dtype="float32", threads=1, max_batch=32, max_tokens=128, python=VLLM_PYTHON
    ),
}
SAMPLING = SamplingParams(temperature=0.8, max_new_tokens=6, stop_token_ids=(3, 5))
STARTS = pytest.mark.timeout(180)  # torch takes its time where other work shares the machine


@dataclass
class Bench:
    """An engine, and what it told."""

    engine: ProcessEngine
    events: list[EngineEvent] = field(default_factory=list)
    _changed: trio.Event = field(default_factory=trio.Event)

    def on_event(self, event: EngineEvent) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = trio.Event()

    async def ready(self, num_times: int = 1) -> None:
        while sum(isinstance(e, EngineReady) for e in self.events) < num_times:
            await self._changed.wait()


needs_vllm = pytest.mark.skipif(
    not VLLM_PYTHON, reason="ECHO2_VLLM_PYTHON names no interpreter; make test-vllm does"
)
VLLM = [pytest.mark.model, pytest.mark.vllm, needs_vllm]


MARKS = {"transformers": [pytest.mark.model], "vllm": VLLM}


@pytest.fixture(params=[pytest.param(kind, marks=MARKS.get(kind, ())) for kind in OPTIONS])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Bench]:
    benches: list[Bench] = []
    early: list[EngineEvent] = []

    def on_event(event: EngineEvent) -> None:
        (benches[0].on_event if benches else early.append)(event)

    spec = engine_spec(kind, OPTIONS[kind])
    async with open_engine(spec, log_path=folder / "engine.log", on_event=on_event) as engine:
        benches.append(Bench(engine, early))
        await benches[0].ready()
        yield benches[0]


@pytest.fixture
def policies(tmp_path: Path) -> Sequence[PolicyFiles]:
    return [write_policy(tmp_path, version, tiny_model(seed=version)) for version in range(2)]


def group(group_id: int, prompt: Sequence[int], seeds: Sequence[int]) -> LeasedGroup:
    samples = tuple(SampleSpec(index, seed) for index, seed in enumerate(seeds))
    return LeasedGroup(group_id, pack_tokens(prompt), samples)


GROUPS = (
    group(7, [1, 2, 3], range(100, 105)),
    group(8, [4], range(200, 202)),
    group(9, [2] * 12, range(300, 304)),
)


def tokens_by_sample(completions: Sequence[Completion]) -> dict[tuple[int, int], list[int]]:
    return {(c.group_id, c.sample_index): unpack_tokens(c.tokens) for c in completions}


@STARTS
async def test_every_sample_is_answered_once_in_valid_form(
    kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    async with opened(kind, tmp_path) as bench:
        await bench.engine.load_policy(policies[1])
        generated = await bench.engine.generate(GROUPS, SAMPLING)

    wanted = {(g.group_id, s.index) for g in GROUPS for s in g.samples}
    assert len(generated.completions) == len(wanted)
    assert set(tokens_by_sample(generated.completions)) == wanted
    for completion in generated.completions:
        tokens, logprobs = unpack_tokens(completion.tokens), unpack_floats(completion.logprobs)
        assert len(tokens) == len(logprobs)
        assert all(math.isfinite(x) and x <= 0 for x in logprobs)
        assert all(token < VOCAB_SIZE for token in tokens)
        assert not set(tokens[:-1]) & {3, 5}
        if completion.finish_reason is FinishReason.STOP:
            assert tokens[-1] in {3, 5}
        else:
            assert len(tokens) == 6
            assert tokens[-1] not in {3, 5}
        assert (completion.oldest_version, completion.newest_version) == (1, 1)
    assert {c.finish_reason for c in generated.completions} >= {FinishReason.STOP}


@STARTS
async def test_a_sample_depends_on_its_seed_and_prompt_and_not_on_its_company(
    kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    async with opened(kind, tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        together = await bench.engine.generate(GROUPS, SAMPLING)
        apart = [
            completion
            for g in reversed(GROUPS)
            for s in reversed(g.samples)
            for completion in (
                await bench.engine.generate(
                    (LeasedGroup(g.group_id, g.prompt_tokens, (s,)),), SAMPLING
                )
            ).completions
        ]

    assert tokens_by_sample(apart) == tokens_by_sample(together.completions)


def recompute_logits(version: int, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Return the logits that each of ``tokens`` was sampled from after ``prompt``, in float32."""
    model = tiny_model(seed=version)
    with torch.no_grad():
        output = model(torch.tensor([[*prompt, *tokens]]))
    logits_TV: torch.Tensor = output.logits[0, len(prompt) - 1 : -1]
    return logits_TV


def recompute(version: int, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Return the logprob of each of ``tokens`` after ``prompt``, in float32, as sampled."""
    logits_TV = recompute_logits(version, prompt, tokens)
    logprobs_TV = (logits_TV / SAMPLING.temperature).log_softmax(-1)
    return logprobs_TV.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]


@pytest.fixture(params=[pytest.param(kind, marks=marks) for kind, marks in MARKS.items()])
def model_kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@STARTS
async def test_with_next_to_no_temperature_each_version_samples_what_it_finds_likeliest(
    model_kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    greedy = SamplingParams(temperature=1e-4, max_new_tokens=6, stop_token_ids=())
    prompts = {g.group_id: unpack_tokens(g.prompt_tokens) for g in GROUPS}
    sampled = []
    async with opened(model_kind, tmp_path) as bench:
        for policy in [*policies, policies[0]]:
            await bench.engine.load_policy(policy)
            generated = await bench.engine.generate(GROUPS, greedy)
            sampled.append(tokens_by_sample(generated.completions))

            for (group_id, _), tokens in sampled[-1].items():
                logits_TV = recompute_logits(policy.version, prompts[group_id], tokens)
                chosen_T = logits_TV.gather(1, torch.tensor(tokens)[:, None])[:, 0]
                behind_T = logits_TV.max(-1).values - chosen_T
                # Of two that are as good as equal, bfloat16 may find the other likelier.
                assert behind_T.max() < (1e-4 if model_kind == "vllm" else 0.15)
    old, new, old_again = sampled
    assert old == old_again != new


@STARTS
async def test_logprobs_are_of_the_whole_distribution_that_was_sampled_from_by_each_version(
    model_kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    prompts = {g.group_id: unpack_tokens(g.prompt_tokens) for g in GROUPS}
    async with opened(model_kind, tmp_path) as bench:
        for policy in policies:
            await bench.engine.load_policy(policy)
            generated = await bench.engine.generate(GROUPS, SAMPLING)

            for completion in generated.completions:
                tokens = unpack_tokens(completion.tokens)
                recomputed = recompute(policy.version, prompts[completion.group_id], tokens)
                told = torch.tensor(unpack_floats(completion.logprobs))
                # bfloat16, where the engine takes it by itself, is as near as 0.1.
                assert (told - recomputed).abs().max() < (1e-3 if model_kind == "vllm" else 0.15)


@STARTS
async def test_more_prompts_than_one_pass_takes_are_sampled_as_they_are_alone(
    model_kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    # 40 prompts of 90 tokens that have nothing in common; vLLM takes 2048 tokens at once.
    many = [
        group(i, random.Random(i).choices(range(VOCAB_SIZE), k=90), range(i, i + 1))
        for i in range(40)
    ]
    async with opened(model_kind, tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        together = await bench.engine.generate(many, SAMPLING)
        alone = [await bench.engine.generate([each], SAMPLING) for each in many[-3:]]

    found = tokens_by_sample(together.completions)
    assert len(found) == len(many)
    for generated in alone:
        for key, tokens in tokens_by_sample(generated.completions).items():
            assert found[key] == tokens


async def begin_and_cancel(
    engine: ProcessEngine, groups: Sequence[LeasedGroup], sampling: SamplingParams
) -> None:
    begun = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(engine.generate, groups, sampling, on_progress=lambda _: begun.set())
        )
        await begun.wait()
        nursery.cancel_scope.cancel()


@STARTS
async def test_what_is_cancelled_frees_its_place_and_what_is_asked_later_is_right(
    model_kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    endless = SamplingParams(temperature=0.8, max_new_tokens=100, stop_token_ids=())
    # Minutes of work for either engine: whoever had to wait for it would be noticed.
    many = [group(i, [i % VOCAB_SIZE], range(250)) for i in range(32)]
    async with opened(model_kind, tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        before = await bench.engine.generate(GROUPS, SAMPLING)
        for _ in range(2):
            await begin_and_cancel(bench.engine, many, endless)
        with trio.fail_after(60):
            after = await bench.engine.generate(GROUPS, SAMPLING)
            await bench.engine.load_policy(policies[1])

    assert tokens_by_sample(after.completions) == tokens_by_sample(before.completions)
    assert not any(isinstance(event, EngineExited) for event in bench.events)


@STARTS
@pytest.mark.model
@pytest.mark.vllm
@needs_vllm
async def test_a_version_applied_in_the_midst_samples_the_rest_and_each_completion_says_so(
    tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    endless = SamplingParams(temperature=0.8, max_new_tokens=100, stop_token_ids=())
    several = (group(1, [1, 2, 3], range(250)),)
    answers: list[Sequence[Completion]] = []
    async with opened("vllm", tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        async with trio.open_nursery() as nursery:
            begun = trio.Event()

            async def sample() -> None:
                made = await bench.engine.generate(
                    several, endless, on_progress=lambda _: begun.set()
                )
                answers.append(made.completions)

            nursery.start_soon(sample)
            await begun.wait()
            await bench.engine.load_policy(policies[1])

    (completions,) = answers
    spans = {(c.oldest_version, c.newest_version) for c in completions}
    # 250 completions, 32 at a time: some were done, some in the midst, some not begun.
    assert spans == {(0, 0), (0, 1), (1, 1)}
    for completion in completions:
        tokens = unpack_tokens(completion.tokens)
        told = torch.tensor(unpack_floats(completion.logprobs))
        is_old, is_new = (
            (told - recompute(version, [1, 2, 3], tokens)).abs() < 1e-3 for version in range(2)
        )
        # Up to some token the one version, from there on the other, and never a mixture.
        num_old = int(is_old.long().cumprod(0).sum())
        assert bool((is_new[num_old:]).all())
        if completion.oldest_version == 1:
            assert bool(is_new.all())
        elif completion.newest_version == 0:
            assert num_old == 100
        else:
            assert num_old < 100


@STARTS
@pytest.mark.model
@pytest.mark.vllm
@needs_vllm
async def test_nothing_of_an_engine_with_processes_of_its_own_outlives_it(
    tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    async with opened("vllm", tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        assert bench.engine.pid is not None
        group_id = bench.engine.pid
        assert len(processes_of_group(group_id)) > 1

    with trio.fail_after(60):
        while processes_of_group(group_id):  # noqa: ASYNC110
            await trio.sleep(0.05)


def processes_of_group(group_id: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # After the name, which may hold anything: state, parent, process group.
            state, _, number = stat.read_text().rpartition(")")[2].split()[:3]
            if int(number) == group_id and state != "Z":
                found.append(int(stat.parent.name))
    return found


@STARTS
async def test_a_version_that_cannot_be_applied_leaves_the_old_one(
    kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bad = PolicyFiles(
        version=policies[1].version, weights_dir=empty, assets_dir=policies[1].assets_dir
    )
    async with opened(kind, tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        before = await bench.engine.generate(GROUPS, SAMPLING)
        with pytest.raises(ChildError, match=r"no \.safetensors file"):
            await bench.engine.load_policy(bad)
        after = await bench.engine.generate(GROUPS, SAMPLING)

        assert bench.engine.applied_version == 0
    assert after.completions == before.completions
    assert not any(isinstance(event, EngineExited) for event in bench.events)


@STARTS
async def test_an_engine_that_was_killed_comes_back_without_a_policy(
    kind: str, tmp_path: Path, policies: Sequence[PolicyFiles]
) -> None:
    async with opened(kind, tmp_path) as bench:
        await bench.engine.load_policy(policies[0])
        assert bench.engine.pid is not None
        os.kill(bench.engine.pid, signal.SIGKILL)
        with pytest.raises(EngineDownError):
            await bench.engine.generate(GROUPS, SAMPLING)
        await bench.ready(num_times=2)

        assert bench.engine.applied_version is None
        assert bench.engine.num_restarts == 1
        await bench.engine.load_policy(policies[1])
        assert (await bench.engine.generate(GROUPS, SAMPLING)).completions
    assert sum(isinstance(event, EngineExited) for event in bench.events) == 1


@STARTS
async def test_it_says_what_it_is_and_samples_nothing_without_a_policy(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as bench:
        with pytest.raises(ChildError, match="no policy is loaded"):
            await bench.engine.generate(GROUPS, SAMPLING)
        ready = bench.events[0]

    assert isinstance(ready, EngineReady)
    assert ready.description.engine == kind
    assert ready.description.device


@STARTS
@pytest.mark.model
@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
async def test_a_device_that_is_not_there_is_told_at_once_and_not_tried_again(
    tmp_path: Path,
) -> None:
    spec = engine_spec("transformers", TransformersOptions(device="cuda:7"))
    events: list[EngineEvent] = []

    broken = pytest.RaisesExc(EngineBrokenError, match="no GPU cuda:7 here")
    with pytest.RaisesGroup(broken, flatten_subgroups=True):
        async with open_engine(spec, log_path=tmp_path / "log", on_event=events.append):
            await trio.sleep_forever()

    assert events == []


def test_every_engine_with_options_is_tested_here() -> None:
    assert set(OPTIONS) == set(OPTIONS_OF)
