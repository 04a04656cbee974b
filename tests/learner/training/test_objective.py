"""The objective, against a second writing of it in numpy and float64."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from learner.training.objective import (
    Trained,
    importance_weights,
    kl_penalties,
    surrogate_losses,
    token_metrics,
)

pytestmark = pytest.mark.model
Array = npt.NDArray[np.float64]
LIMITS: dict[str, float] = {"clip_low": 0.2, "clip_high": 0.28, "importance_cap": 2.0}
LOW, HIGH, CAP = 0.2, 0.28, 2.0


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

    losses = surrogate_losses(policy, prox, behaviour, advantages, **LIMITS)

    np.testing.assert_allclose(losses.numpy(), losses_in_numpy(*values), rtol=1e-6, atol=1e-12)


@given(tokens())
def test_a_step_down_the_gradient_makes_better_tokens_likelier(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, prox, behaviour, advantages = double(*values)
    policy.requires_grad_()

    surrogate_losses(policy, prox, behaviour, advantages, **LIMITS).sum().backward()

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

    surrogate_losses(policy, prox, behaviour, advantages, **LIMITS).sum().backward()

    assert policy.grad is not None
    assert prox.grad is None
    assert behaviour.grad is None


@given(tokens())
def test_at_the_start_of_an_update_the_gradient_is_the_weighted_policy_gradient(
    values: tuple[Array, Array, Array, Array],
) -> None:
    policy, _, behaviour, advantages = double(*values)
    policy.requires_grad_()

    surrogate_losses(policy, policy.detach(), behaviour, advantages, **LIMITS).sum().backward()

    weight = np.minimum(np.exp(values[0] - values[2]), CAP)
    assert policy.grad is not None
    np.testing.assert_allclose(policy.grad.numpy(), -weight * values[3], rtol=1e-6, atol=1e-12)


@given(tokens())
def test_on_policy_tokens_have_weight_one(values: tuple[Array, Array, Array, Array]) -> None:
    _, prox, _, _ = double(*values)

    assert importance_weights(prox, prox.clone()).tolist() == [1.0] * len(prox)


@given(tokens(), st.floats(0.1, 4))
def test_losses_scale_with_advantages(
    values: tuple[Array, Array, Array, Array], factor: float
) -> None:
    policy, prox, behaviour, advantages = double(*values)

    once = surrogate_losses(policy, prox, behaviour, advantages, **LIMITS)
    scaled = surrogate_losses(policy, prox, behaviour, factor * advantages, **LIMITS)

    torch.testing.assert_close(scaled, factor * once)


def test_extreme_logprobs_give_finite_losses_and_gradients() -> None:
    policy = torch.tensor([0.0, -1e4, -3.0], requires_grad=True)
    prox = torch.tensor([-1e4, 0.0, -3.0])
    behaviour = torch.tensor([0.0, -1e4, -1e4])

    losses = surrogate_losses(policy, prox, behaviour, torch.tensor([1.0, -1.0, 1.0]), **LIMITS)
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

    metrics = token_metrics(
        Trained(
            policy_N=tensors[0],
            prox_N=tensors[1],
            behaviour_N=tensors[2],
            advantages_N=tensors[3],
            entropy_N=-tensors[0],
            reference_N=tensors[1],
        ),
        **LIMITS,
    )

    ratio, weight = np.exp(policy - prox), np.exp(prox - behaviour)
    clipped = ((ratio > 1 + HIGH) & (advantages > 0)) | ((ratio < 1 - LOW) & (advantages < 0))
    expected = {
        "ratio_mean": ratio.mean(),
        "clipped_share": clipped.mean(),
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
