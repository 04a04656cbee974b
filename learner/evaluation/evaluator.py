"""One model through the prompts: sampled by an engine's process, scored by the task's.

The engine is the node's own (``node.engine.transformers_worker``), so that what is evaluated is
sampled exactly as rollouts are. It is started by its name: learner and node import nothing of
each other.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from echo2swarm.models.cache import torch_env
from echo2swarm.processes.engine_messages import (
    Completion,
    Generate,
    Generated,
    LoadPolicy,
    PolicyLoaded,
)
from echo2swarm.processes.parent import Child, open_child
from echo2swarm.system.errors import SwarmError
from learner.evaluation.held_out import sample_seed
from learner.scoring.messages import CompletionToScore as ToScore
from learner.scoring.messages import Prompt, sha256_of_prompt
from learner.scoring.ports import Scorer
from protocols.leases import LeasedGroup, SampleSpec
from protocols.sampling import SamplingParams

ENGINE: Final = "node.engine.transformers_worker"
GREEDY_TEMPERATURE: Final = 1e-3
"""So low that the most likely token is sampled; only a tie within 0.01 of a logit is left to
chance."""
_PROMPTS_AT_ONCE: Final = 16
_LOAD_S: Final = 1800.0
_GENERATE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A model folder."""

    label: str
    weights_dir: Path
    assets_dir: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """What is made of each prompt."""

    samples_per_prompt: int
    sampling: SamplingParams
    seed: int
    is_greedy_too: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Of one model. Letters: N prompts, K samples."""

    label: str
    sampled_NK: list[list[float]]
    greedy_N: list[float] | None
    num_failed: int
    """Completions that the verifier failed on; they count as 0."""
    num_tokens: int


OnDone = Callable[[int], None]
"""Told how many completions more are done."""


@asynccontextmanager
async def open_evaluation_engine(
    *, device: str, threads: int, log_path: Path
) -> AsyncIterator[Child]:
    """Run an engine for the length of the context."""
    options = json.dumps({"device": device, "threads": threads})
    env = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
        **({"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}),
        **torch_env(),
    }
    async with open_child(
        ENGINE, name="engine", arguments=[options], env=env, log_path=log_path
    ) as child:
        yield child


async def evaluate_policy(
    policy: PolicyFolder,
    prompts: Sequence[Prompt],
    plan: EvaluationPlan,
    *,
    engine: Child,
    scorer: Scorer,
    on_done: OnDone,
) -> Rewards:
    """Return the rewards of one model's completions of ``prompts``.

    Raises:
        SwarmError: the model can't be loaded or sampled.
    """
    load = LoadPolicy(0, str(policy.weights_dir), str(policy.assets_dir))
    await engine.call(load, PolicyLoaded, timeout_s=_LOAD_S)
    sampled: list[list[float]] = []
    greedy: list[float] | None = [] if plan.is_greedy_too else None
    num_failed = num_tokens = 0
    for start in range(0, len(prompts), _PROMPTS_AT_ONCE):
        part = prompts[start : start + _PROMPTS_AT_ONCE]
        made = await _sample(part, plan, engine)
        if greedy is not None:
            made += await _most_likely(part, plan, engine)
        asked = {prompt.index: sha256_of_prompt(prompt.tokens) for prompt in part}
        rewards = await scorer.score(
            [ToScore(each.group_id, each.tokens, asked[each.group_id]) for each in made]
        )
        table = {prompt.index: [0.0] * plan.samples_per_prompt for prompt in part}
        likely: dict[int, float] = {}
        for completion, reward in zip(made, rewards, strict=True):
            num_failed += reward.reward is None
            num_tokens += len(completion.tokens) // 4
            value = reward.reward or 0.0
            if completion.sample_index < plan.samples_per_prompt:
                table[completion.group_id][completion.sample_index] = value
            else:
                likely[completion.group_id] = value
        sampled += table.values()
        if greedy is not None:
            greedy += [likely[prompt.index] for prompt in part]
        on_done(len(made))
    return Rewards(
        label=policy.label,
        sampled_NK=sampled,
        greedy_N=greedy,
        num_failed=num_failed,
        num_tokens=num_tokens,
    )


async def _sample(part: Sequence[Prompt], plan: EvaluationPlan, engine: Child) -> list[Completion]:
    groups = [
        LeasedGroup(
            group_id=prompt.index,
            prompt_tokens=prompt.tokens,
            samples=tuple(
                SampleSpec(index=k, seed=sample_seed(plan.seed, prompt.index, k))
                for k in range(plan.samples_per_prompt)
            ),
        )
        for prompt in part
    ]
    return await _generate(groups, plan.sampling, engine)


async def _most_likely(
    part: Sequence[Prompt], plan: EvaluationPlan, engine: Child
) -> list[Completion]:
    index = plan.samples_per_prompt
    groups = [
        LeasedGroup(
            group_id=prompt.index,
            prompt_tokens=prompt.tokens,
            samples=(SampleSpec(index=index, seed=sample_seed(plan.seed, prompt.index, index)),),
        )
        for prompt in part
    ]
    sampling = SamplingParams(
        temperature=GREEDY_TEMPERATURE,
        max_new_tokens=plan.sampling.max_new_tokens,
        stop_token_ids=plan.sampling.stop_token_ids,
    )
    return await _generate(groups, sampling, engine)


async def _generate(
    groups: list[LeasedGroup], sampling: SamplingParams, engine: Child
) -> list[Completion]:
    message = Generate(tuple(groups), sampling)
    generated = await engine.call(message, Generated, timeout_s=_GENERATE_S)
    wanted = {(group.group_id, sample.index) for group in groups for sample in group.samples}
    got = {(c.group_id, c.sample_index) for c in generated.completions}
    if got != wanted or len(generated.completions) != len(wanted):
        raise SwarmError("the engine did not answer every sample once")
    return list(generated.completions)
