"""The objective, token by token, against a second writing of it in numpy and float64.

Whole batches are in ``test_reference.py``.
"""

from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from learner.config import TrainerConfig
from learner.config.objective import Objective, objective_of
from learner.trainer.objective import (
    Given,
    importance_ratios,
    importance_weights,
    is_left_out,
    is_masked,
    kl_penalties,
    token_losses,
)
from learner.trainer.token_metrics import TokenFigures, metrics_by_staleness, token_metrics

pytestmark = pytest.mark.model
Array = npt.NDArray[np.float64]
UNLIMITED = {"dual_clip": 0.0, "off_policy_mask": 0.0, "max_drift": 0.0}
OBJECTIVE = objective_of(msgspec.convert(UNLIMITED, TrainerConfig))
"""Without what leaves out whole sequences, which random numbers here nearly always are."""
LOW, HIGH, CAP = 0.2, 0.28, 2.0


def objective(**keys: object) -> Objective:
    return objective_of(msgspec.convert(UNLIMITED | keys, TrainerConfig))


def given_of(
    prox: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    *,
    lengths: list[int] | None = None,
) -> Given:
    """All tokens of one sample, or of several of the given lengths."""
    lengths_S = torch.tensor(lengths or [len(prox)])
    return Given(
        prox_N=prox,
        behaviour_N=behaviour,
        advantages_N=advantages,
        sample_N=torch.arange(len(lengths_S)).repeat_interleave(lengths_S),
        lengths_S=lengths_S,
    )


def losses_of(
    policy: torch.Tensor,
    prox: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    chosen: Objective = OBJECTIVE,
) -> torch.Tensor:
    return token_losses(policy, given_of(prox, behaviour, advantages), chosen)


def logprobs(size: int) -> st.SearchStrategy[Array]:
    return arrays(np.float64, size, elements=st.floats(-12, 0, allow_subnormal=False))


@st.composite
def tokens(draw: st.DrawFn) -> tuple[Array, Array, Array, Array]:
    size = draw(st.integers(1, 12))
    advantages = arrays(np.float64, size, elements=st.floats(-3, 3, allow_subnormal=False))
    policy, prox, behaviour = (draw(logprobs(size)) for _ in range(3))
    return policy, prox, behaviour, draw(advantages)


def losses_in_numpy(policy: Array, prox: Array, behaviour: Array, advantages: Array) -> Array:
    """Written from the formula, case by case."""
    losses = []
    for p, q, b, a in zip(policy, prox, behaviour, advantages, strict=True):
        ratio = np.exp(p) / np.exp(q)
        weight = np.exp(q) / np.exp(b)
        gain = ratio * a
        if a > 0 and ratio > 1 + HIGH:
            gain = (1 + HIGH) * a
        if a < 0 and ratio < 1 - LOW:
            gain = (1 - LOW) * a
        losses.append(-(CAP if weight > CAP else weight) * gain)
    return np.array(losses)


def double(*values: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(value) for value in values)


@given(tokens())
def test_losses_are_those_of_the_formula(values: tuple[Array, Array, Array, Array]) -> None:
    policy, prox, behaviour, advantages = double(*values)

    losses = losses_of(policy, prox, behaviour, advantages)

    np.testing.assert_allclose(losses.numpy(), losses_in_numpy(*values), rtol=1e-6, atol=1e-12)


@given(tokens())
def test_a_step_down_the_gradient_makes_better_tokens_likelier(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, prox, behaviour, advantages = double(*values)
    policy.requires_grad_()

    losses_of(policy, prox, behaviour, advantages).sum().backward()

    assert policy.grad is not None
    ratio = np.exp(values[0] - values[1])
    for gradient, advantage, r in zip(policy.grad.numpy(), values[3], ratio, strict=True):
        if (advantage > 0 and r > 1 + HIGH) or (advantage < 0 and r < 1 - LOW):
            assert gradient == 0  # clipped: no further in this direction
        elif abs(advantage) > 1e-6 and 1 - LOW < r < 1 + HIGH:
            assert np.sign(gradient) == -np.sign(advantage)


@given(tokens())
def test_only_the_policy_gets_a_gradient(values: tuple[Array, Array, Array, Array]) -> None:
    policy, prox, behaviour, advantages = double(*values)
    for tensor in (policy, prox, behaviour):
        tensor.requires_grad_()

    losses_of(policy, prox, behaviour, advantages).sum().backward()

    assert policy.grad is not None
    assert prox.grad is None
    assert behaviour.grad is None


@given(tokens())
def test_at_the_start_of_an_update_the_gradient_is_the_weighted_policy_gradient(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, _, behaviour, advantages = double(*values)
    policy.requires_grad_()

    losses_of(policy, policy.detach(), behaviour, advantages).sum().backward()

    weight = np.minimum(np.exp(values[0] - values[2]), CAP)
    assert policy.grad is not None
    np.testing.assert_allclose(policy.grad.numpy(), -weight * values[3], rtol=1e-6, atol=1e-12)


@given(tokens())
def test_on_policy_tokens_have_weight_one(values: tuple[Array, Array, Array, Array]) -> None:
    _, prox, _, _ = double(*values)

    given_ = given_of(prox, prox.clone(), torch.ones_like(prox))
    for level in ("token", "sequence", "geometric"):
        weights = importance_weights(given_, objective(importance_level=level))
        assert weights.tolist() == [1.0] * len(prox)


@given(tokens(), st.floats(0.1, 4))
def test_losses_scale_with_advantages(
    values: tuple[Array, Array, Array, Array], factor: float
) -> None:
    policy, prox, behaviour, advantages = double(*values)

    once = losses_of(policy, prox, behaviour, advantages)
    scaled = losses_of(policy, prox, behaviour, factor * advantages)

    torch.testing.assert_close(scaled, factor * once)


def test_extreme_logprobs_give_finite_losses_and_gradients() -> None:
    policy = torch.tensor([0.0, -1e4, -3.0], requires_grad=True)
    prox = torch.tensor([-1e4, 0.0, -3.0])
    behaviour = torch.tensor([0.0, -1e4, -1e4])

    losses = losses_of(policy, prox, behaviour, torch.tensor([1.0, -1.0, 1.0]))
    (losses.sum() + kl_penalties(policy, behaviour).sum()).backward()

    assert torch.isfinite(losses).all()
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()


@given(tokens())
def test_the_kl_penalty_is_never_negative_and_zero_for_equals(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, reference, _, _ = double(*values)

    assert (kl_penalties(policy, reference) >= -1e-15).all()
    assert kl_penalties(policy, policy).abs().max() == 0


def test_the_kl_penalty_estimates_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 5, generator=generator, dtype=torch.float64).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()

    expectation = (policy.exp() * kl_penalties(policy, reference)).sum()

    torch.testing.assert_close(expectation, exact)


@settings(max_examples=25)
@given(tokens())
def test_metrics_are_those_of_the_formulas(values: tuple[Array, Array, Array, Array]) -> None:
    policy, prox, behaviour, advantages = values
    tensors = double(*values)

    given_ = replace(given_of(*tensors[1:]), reference_N=tensors[1])
    trained = TokenFigures(policy_N=tensors[0], given=given_, entropy_N=-tensors[0])
    metrics = token_metrics(trained, OBJECTIVE)

    ratio, weight = np.exp(policy - prox), np.exp(prox - behaviour)
    above, below = (ratio > 1 + HIGH) & (advantages > 0), (ratio < 1 - LOW) & (advantages < 0)
    expected = {
        "ratio_mean": ratio.mean(),
        "clipped_share": (above | below).mean(),
        "clipped_high_share": above.mean(),
        "clipped_low_share": below.mean(),
        "masked_share": 0.0,
        "left_out_share": 0.0,
        "dual_clipped_share": 0.0,
        "importance_mean": weight.mean(),
        "importance_max": weight.max(),
        "importance_truncated_share": (weight > CAP).mean(),
        "effective_sample_share": weight.sum() ** 2 / (len(weight) * (weight**2).sum()),
        "kl_behaviour_prox": (weight - 1 - np.log(weight)).mean(),
        "kl_reference": (1 / ratio - 1 + np.log(ratio)).mean(),
        "drift_mean": np.abs(prox - behaviour).mean(),
        "drift_max": np.abs(prox - behaviour).max(),
        "entropy": -policy.mean(),
    }
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)


@given(tokens(), st.floats(0, 1), st.floats(1, 4))
def test_masked_tokens_neither_count_nor_have_a_gradient(
    values: tuple[Array, Array, Array, Array], below: float, above: float
) -> None:
    policy, prox, behaviour, advantages = double(*values)
    policy.requires_grad_()
    chosen = objective(mask_below=below, mask_above=above, importance_cap=10)

    losses = losses_of(policy, prox, behaviour, advantages, chosen)
    losses.sum().backward()

    ratio = np.exp(values[1] - values[2])
    assert policy.grad is not None
    for loss, gradient, r in zip(losses, policy.grad, ratio, strict=True):
        if r < below - 1e-9 or r > above + 1e-9:
            assert loss == 0
            assert gradient == 0
    kept = (ratio >= below) & (ratio <= above)
    plain = losses_of(policy, prox, behaviour, advantages, objective(importance_cap=10))
    np.testing.assert_allclose(
        losses.detach().numpy()[kept], plain.detach().numpy()[kept], rtol=1e-9
    )


def test_masking_what_is_infinitely_far_gives_zero_not_nan() -> None:
    policy = torch.tensor([-1.0, -1.0, -1e4], requires_grad=True)
    prox, behaviour = torch.tensor([-1e4, 0.0, -1.0]), torch.tensor([-1.0, -1e4, -1.0])
    chosen = objective(mask_below=0.5, mask_above=5.0)

    losses = losses_of(policy, prox, behaviour, torch.tensor([1.0, -1.0, -1.0]), chosen)
    losses.sum().backward()

    assert losses[:2].tolist() == [0.0, 0.0]
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()
    assert policy.grad[:2].tolist() == [0.0, 0.0]


def test_a_mask_by_sequence_takes_all_of_its_tokens_or_none() -> None:
    prox = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    behaviour = torch.tensor([-1.0, -2.0, -1.1, -0.9])
    given_ = given_of(prox, behaviour, torch.ones(4), lengths=[2, 2])

    by_token = is_masked(given_, objective(mask_above=2.0))
    by_sequence = is_masked(given_, objective(mask_above=2.0, mask_level="sequence"))
    by_mean = is_masked(given_, objective(mask_above=2.0, mask_level="geometric"))

    assert by_token.tolist() == [False, True, False, False]
    assert by_sequence.tolist() == [True, True, False, False]  # exp(1) > 2
    assert by_mean.tolist() == [False, False, False, False]  # exp(1 / 2) < 2


@given(tokens())
def test_a_ratio_of_a_sequence_is_the_product_over_its_tokens(
    values: tuple[Array, Array, Array, Array],
) -> None:
    _, prox, behaviour, advantages = double(*values)
    given_ = given_of(prox, behaviour, advantages)

    of_token = importance_ratios(given_, "token")
    log_product = float(np.sum(values[1] - values[2]))

    for level, log_ratio in (
        ("sequence", log_product),
        ("geometric", log_product / len(values[0])),
    ):
        ratios = importance_ratios(given_, level)  # type: ignore[arg-type]
        expected = np.full(len(of_token), np.exp(min(log_ratio, 20.0)))
        np.testing.assert_allclose(ratios.numpy(), expected, rtol=1e-9)


@given(tokens())
def test_coupled_is_ppo_against_who_sampled(values: tuple[Array, Array, Array, Array]) -> None:
    policy, prox, behaviour, advantages = double(*values)

    coupled = losses_of(policy, prox, behaviour, advantages, objective(importance="coupled"))
    ppo = losses_of(policy, behaviour, behaviour, advantages)

    torch.testing.assert_close(coupled, ppo)


@given(tokens())
def test_without_correction_who_sampled_does_not_matter(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, prox, behaviour, advantages = double(*values)
    chosen = objective(importance="none")

    losses = losses_of(policy, prox, behaviour, advantages, chosen)

    torch.testing.assert_close(losses, losses_of(policy, prox, prox, advantages))


def test_the_gradient_of_k2_is_that_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(-1)

    policy = logits.log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    # On policy, the expectation of the estimate's gradient: that of the samples does not count.
    estimate = (policy.detach().exp() * kl_penalties(policy, reference, "k2")).sum()
    (found,) = torch.autograd.grad(estimate, logits)

    torch.testing.assert_close(found, wanted)


def test_metrics_are_split_by_staleness() -> None:
    prox = torch.tensor([-1.0, -1.0, -1.0])
    behaviour = torch.tensor([-1.0, -1.0, -2.0])
    given_ = given_of(prox, behaviour, torch.ones(3), lengths=[2, 1])
    trained = TokenFigures(policy_N=prox, given=given_, entropy_N=torch.zeros(3))

    found = metrics_by_staleness(trained, torch.tensor([0, 3]), OBJECTIVE)

    assert set(found) == {0, 3}
    assert (found[0]["num_samples"], found[0]["num_tokens"]) == (1, 2)
    assert (found[0]["drift_mean"], found[0]["importance_truncated_share"]) == (0, 0)
    assert (found[3]["drift_mean"], found[3]["importance_truncated_share"]) == (1, 1)


def test_presets_are_what_their_papers_say_and_keys_win_over_them() -> None:
    assert objective() == objective(objective="standard")
    grpo, dr_grpo = objective(objective="grpo"), objective(objective="dr_grpo")
    dapo, gspo = objective(objective="dapo"), objective(objective="gspo")
    assert (grpo.length_norm, grpo.scale_advantages, grpo.clip_high) == ("sequence", True, 0.2)
    assert (dr_grpo.length_norm, dr_grpo.scale_advantages) == ("constant", False)
    assert (dapo.length_norm, dapo.clip_low, dapo.clip_high) == ("token", 0.2, 0.28)
    assert (gspo.ratio_level, gspo.clip_low, gspo.clip_high) == ("geometric", 3e-4, 4e-4)
    assert objective(objective="gspo", clip_high=0.1).clip_high == 0.1
    assert objective(objective="grpo", scale_advantages=False).scale_advantages is False


LIMITED = objective_of(TrainerConfig())
MASKED = objective(off_policy_mask=0.5)


@given(tokens())
def test_the_loss_of_a_negative_advantage_is_bounded_by_the_dual_clip(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, prox, behaviour, advantages = double(*values)

    losses = losses_of(policy, prox, behaviour, advantages, objective(dual_clip=3.0))

    # The importance weight is at most its cap.
    assert bool((losses <= CAP * 3.0 * advantages.abs() + 1e-9).all())


def test_the_dual_clip_is_at_work_with_one_step_where_the_ratio_is_coupled() -> None:
    policy, behaviour = torch.tensor([-0.1, -0.1]), torch.tensor([-9.0, -9.0])
    advantages = torch.tensor([-1.0, 1.0])

    losses = losses_of(
        policy, policy, behaviour, advantages, objective(importance="coupled", dual_clip=3.0)
    )

    assert losses.tolist() == pytest.approx([3.0, -(1 + HIGH)])


def left_out(
    policy: list[float], behaviour: list[float], advantage: float, chosen: Objective = LIMITED
) -> list[bool]:
    policy_N = torch.tensor(policy)
    given_ = given_of(policy_N, torch.tensor(behaviour), torch.full((len(policy),), advantage))
    return is_left_out(policy_N, given_, chosen).tolist()


def test_the_off_policy_mask_is_for_bad_sequences_that_are_told_likelier_than_they_are() -> None:
    assert left_out([-0.1, -0.1, -6.0], [-0.01] * 3, -1.0, MASKED) == [True] * 3
    # One such token among many that are as told, or a good sequence, or told less likely.
    assert not any(left_out([-0.1] * 50 + [-6.0], [-0.1] * 50 + [-0.01], -1.0, MASKED))
    assert not any(left_out([-0.1, -0.1, -6.0], [-0.01] * 3, 1.0, MASKED))
    assert not any(left_out([-0.1] * 3, [-5.0] * 3, -1.0, MASKED))


@pytest.mark.parametrize("claim", [-5.0, -0.7, -0.01, -1e30])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_sequences_that_are_not_as_told_are_left_out_good_or_bad(
    claim: float, advantage: float
) -> None:
    # Right, right, wrong, end, as a policy gives them that is nearly sure.
    assert left_out([-0.05, -0.05, -4.0, -0.01], [claim] * 4, advantage) == [True] * 4


def test_sequences_of_a_policy_some_versions_ago_count() -> None:
    assert not any(left_out([-0.05, -0.3, -2.5, -0.01], [-0.1, -0.2, -1.5, -0.02], -1.0))


def test_a_sequence_that_is_left_out_has_no_gradient() -> None:
    policy_N = torch.tensor([-0.1, -6.0], requires_grad=True)

    losses_of(
        policy_N, policy_N.detach(), torch.tensor([-0.1, -0.1]), torch.tensor([-1.0, -1.0]), LIMITED
    ).sum().backward()

    assert policy_N.grad is not None
    assert policy_N.grad.tolist() == [0.0, 0.0]
