"""The cost scenarios say what they were made from, and what is judged is computed."""

import pytest

from benchmarks.paper_cost import SCENARIOS, cheapest, with_bound, with_prices
from benchmarks.roofline import (
    A100,
    CHECKS,
    H100,
    QWEN3_4B,
    QWEN3_8B,
    RTX_4090,
    RTX_5090,
    Model,
    tokens_per_s,
)
from echo2swarm.plan.assumptions import load_assumptions
from echo2swarm.plan.plan import make_plan

CARDS = {
    "RTX 4090": RTX_4090,
    "RTX 5090": RTX_5090,
    "A100 SXM (community)": A100,
    "H100 SXM (community)": H100,
}


@pytest.mark.parametrize(("name", "model"), [("4b", QWEN3_4B), ("8b", QWEN3_8B)])
def test_speeds_in_the_scenarios_are_those_of_the_cards(name: str, model: Model) -> None:
    found = load_assumptions(SCENARIOS / f"paper-{name}.toml")
    length = found.learner.tokens_per_rollout

    for offer in found.offer:
        expected = tokens_per_s(CARDS[offer.name], model, context=3200) / length
        assert offer.rollouts_per_s == pytest.approx(expected, rel=1e-3)
    assert found.central is not None
    assert found.central.colocated_rollouts_per_s == pytest.approx(
        8 * tokens_per_s(A100, model, context=3200) / length, rel=1e-3
    )
    assert found.weights.payload_mb == pytest.approx(1000 * model.weights_gb)


def test_the_assumed_efficiency_is_within_what_is_published() -> None:
    found = [check.efficiency for check in CHECKS]

    assert min(found) < 0.6 < max(found)


def test_every_number_of_the_scenarios_has_a_remark_or_a_remark_above() -> None:
    for path in SCENARIOS.glob("*.toml"):
        text = path.read_text()
        assert "ASSUMED" in text
        assert text.count("RunPod") >= 4


def test_dearer_nodes_save_less() -> None:
    scenario = with_bound(load_assumptions(SCENARIOS / "paper-8b.toml"), 3)
    costs = []
    for factor in (1.0, 2.0):
        plan = make_plan(with_prices(scenario, factor))
        assert plan.best is not None
        costs.append(plan.best.usd_per_step)
        assert cheapest(plan.baselines).usd_per_step == pytest.approx(8.88, abs=0.2)

    assert costs[1] > costs[0]
