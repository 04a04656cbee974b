"""The loss and its gradient, for whole batches, against plain loops in float64."""

from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.config import TrainerConfig
from learner.config.objective import Objective, objective_of
from learner.config.presets import PRESETS
from learner.trainer.batch import PackedBatch, make_batch
from learner.trainer.messages import TrainGroup
from learner.trainer.objective import token_losses
from learner.trainer.tokens import Tokens
from tests.learner.trainer.model_inputs import group, rollout
from tests.learner.trainer.reference_objective import Completion, Options, loss

pytestmark = pytest.mark.model
MAX_LENGTH = 8


def options_of(chosen: Objective) -> Options:
    return Options(
        clip_low=chosen.clip_low,
        clip_high=chosen.clip_high,
        ratio=chosen.ratio_level,
        norm=chosen.length_norm,
        max_length=MAX_LENGTH,
        scaled=chosen.scale_advantages,
        correction=chosen.importance,
        correction_level=chosen.importance_level,
        cap=chosen.importance_cap,
        below=chosen.mask_below,
        above=chosen.mask_above,
        mask_level=chosen.mask_level,
        beta=chosen.kl_coefficient,
        kl=chosen.kl_estimator,
        dual_clip=chosen.dual_clip,
        off_policy=chosen.off_policy_mask,
        max_drift=chosen.max_drift,
    )


LEVELS = st.sampled_from(["token", "sequence", "geometric"])
TABLES = st.fixed_dictionaries(
    {
        "objective": st.sampled_from(sorted(PRESETS)),
        "importance": st.sampled_from(["decoupled", "coupled", "none"]),
        "importance_level": LEVELS,
        "importance_cap": st.floats(0.5, 5),
        "mask_level": LEVELS,
        "mask_below": st.sampled_from([0.0, 0.7]),
        "mask_above": st.sampled_from([None, 1.6]),
        "kl_coefficient": st.sampled_from([0.0, 0.3]),
        "kl_estimator": st.sampled_from(["k2", "k3", "k3_unbiased"]),
        "dual_clip": st.sampled_from([0.0, 3.0]),
        "off_policy_mask": st.sampled_from([0.0, 0.3]),
        "max_drift": st.sampled_from([0.0, 0.4]),
    },
    optional={"ratio_level": LEVELS, "clip_low": st.just(0.1), "clip_high": st.just(0.1)},
)


@dataclass(frozen=True)
class Case:
    groups: tuple[TrainGroup, ...]
    completions: list[list[Completion]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    logprob = st.integers(-128, -1).map(lambda number: number / 64)  # as exact in float32
    groups, completions = [], []
    for group_id in range(draw(st.integers(1, 3))):
        made, known = [], []
        for _ in range(draw(st.integers(2, 4))):
            length = draw(st.integers(1, MAX_LENGTH))
            columns = [draw(st.lists(logprob, min_size=length, max_size=length)) for _ in range(4)]
            reward = draw(st.sampled_from([0.0, 0.5, 1.0]))
            made.append(rollout([1] * length, columns[2], reward=reward))
            known.append(
                Completion(
                    reward=reward,
                    policy=columns[0],
                    prox=columns[1],
                    behaviour=columns[2],
                    reference=columns[3],
                )
            )
        groups.append(group(group_id, [1], made))
        completions.append(known)
    return Case(tuple(groups), completions)


def batch_of(case: Case, table: TrainerConfig) -> PackedBatch:
    return make_batch(case.groups, table, step=0, vocab_size=2, max_new_tokens=MAX_LENGTH)


def has_signal(known: list[Completion], table: TrainerConfig) -> bool:
    return bool(table.kl_coefficient) or len({completion.reward for completion in known}) > 1


def double(lists: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for values in lists for value in values], dtype=torch.float64)


def our_loss(case: Case, table: TrainerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The trainer's loss in float64, and the policy's log-probabilities that it depends on."""
    batch = batch_of(case, table)
    used = [c for known in case.completions if has_signal(known, table) for c in known]
    policy_N = double([c.policy for c in used]).requires_grad_()
    tokens = Tokens.of(batch, torch.device("cpu"), has_reference=bool(table.kl_coefficient))
    given_ = replace(
        tokens.given(torch.arange(batch.num_tokens), policy_N),
        prox_N=double([c.prox for c in used]),
        behaviour_N=tokens.behaviour_N.double(),
        advantages_N=tokens.advantages_N.double(),
        reference_N=double([c.reference for c in used]) if table.kl_coefficient else None,
    )
    losses_N = token_losses(policy_N, given_, objective_of(table))
    return (tokens.weights_N.double() * losses_N).sum(), policy_N


@settings(max_examples=200, deadline=None)
@given(cases(), TABLES)
def test_the_loss_of_a_batch_is_that_of_the_papers(case: Case, keys: dict[str, object]) -> None:
    table = msgspec.convert(keys, TrainerConfig)
    if not any(has_signal(known, table) for known in case.completions):
        assert batch_of(case, table).num_tokens == 0
        return

    found, _ = our_loss(case, table)

    assert float(found.detach()) == pytest.approx(
        loss(case.completions, options_of(objective_of(table))), rel=1e-6, abs=1e-6
    )


@settings(max_examples=30, deadline=None)
@given(cases(), TABLES)
def test_its_gradient_is_what_differences_of_the_papers_loss_say(
    case: Case, keys: dict[str, object]
) -> None:
    table = msgspec.convert(keys, TrainerConfig)
    if not any(has_signal(known, table) for known in case.completions):
        return
    options = options_of(objective_of(table))

    found, policy_N = our_loss(case, table)
    (gradient_N,) = torch.autograd.grad(found, policy_N)

    size, at = 1e-6, 0
    for number, known in enumerate(case.completions):
        if not has_signal(known, table):
            continue
        for index, completion in enumerate(known):
            for t in range(len(completion.policy)):
                sides = []
                for sign in (size, -size):
                    policy = list(completion.policy)
                    policy[t] += sign
                    moved = [list(g) for g in case.completions]
                    moved[number][index] = replace(completion, policy=policy)
                    sides.append(loss(moved, options))
                one_sided = [
                    (sides[0] - loss(case.completions, options)) / size,
                    (loss(case.completions, options) - sides[1]) / size,
                ]
                if one_sided[0] != pytest.approx(one_sided[1], rel=1e-3, abs=1e-5):
                    at += 1  # at a corner of the clip, where there is no derivative
                    continue
                slope = (sides[0] - sides[1]) / (2 * size)
                assert float(gradient_N[at]) == pytest.approx(slope, rel=1e-4, abs=1e-6)
                at += 1
