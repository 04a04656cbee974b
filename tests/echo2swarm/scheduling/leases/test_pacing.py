"""Whole runs on virtual time: what is leased is used, and everybody who can be useful is."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pacing_swarm import PacingSwarm, SimNode, pacing_rules
from echo2swarm.scheduling.capacity import Delays, LearnerLoad, forecast

TRAIN_S = 1.0
NEEDED_PER_S = 24.0
"""Six groups of four for each update."""


def node(number: int, rollouts_per_s: float, **more: float) -> SimNode:
    return SimNode(
        name=f"node-{number}",
        rollout_s=1 / rollouts_per_s,
        **{"broadcast_s": 0.1, **more},  # type: ignore[arg-type]
    )


def swarm(*nodes: SimNode, seed: int = 1, **rules: object) -> PacingSwarm:
    return PacingSwarm(
        pacing_rules(**rules),  # type: ignore[arg-type]
        list(nodes),
        train_s=TRAIN_S,
        seed=seed,
    )


def alike(num: int, of_needed: float, **more: float) -> list[SimNode]:
    return [node(i, of_needed * NEEDED_PER_S / num, **more) for i in range(num)]


@pytest.mark.parametrize("num_nodes", [1, 3, 10])
@pytest.mark.parametrize("max_staleness", [1, 2, 4])
def test_with_half_as_much_again_as_needed_the_learner_is_busy_and_hardly_anything_is_wasted(
    num_nodes: int, max_staleness: int
) -> None:
    run = swarm(*alike(num_nodes, 1.5), max_staleness=max_staleness)
    run.run(40)

    needs_s = 2 * 4 * num_nodes / (1.5 * NEEDED_PER_S)
    if needs_s + 0.1 < max_staleness * TRAIN_S:
        assert run.utilisation > 0.95
    assert run.wasted_share < 0.02


def test_without_pacing_the_third_that_is_too_much_is_wasted() -> None:
    run = swarm(*alike(3, 1.5), is_paced=False)
    run.run(40)

    assert 0.25 < run.wasted_share < 0.4


def test_a_node_ten_times_slower_gets_its_share_trained() -> None:
    slow = node(9, 1.2)
    run = swarm(*alike(3, 1.5), slow)
    run.run(80)

    of_all = slow.num_trained / run.outcomes["trained"]
    assert of_all > 0.5 * 1.2 / (1.5 * NEEDED_PER_S + 1.2)
    assert run.wasted_share < 0.01
    assert run.utilisation > 0.97


def test_a_node_that_can_never_be_in_time_is_told_so_and_costs_next_to_nothing() -> None:
    slow = node(9, 0.2)
    run = swarm(*alike(3, 1.5), slow)
    run.run(60)

    assert slow.last_no is not None
    assert slow.last_no.is_lasting
    assert "too slow" in slow.last_no.why
    assert "max_staleness 2" in slow.last_no.why
    assert run.utilisation > 0.97
    assert run.wasted_share < 0.02


def test_a_node_that_was_too_slow_is_tried_again_and_may_be_of_use_then() -> None:
    slow = node(9, 12.0, slows_down_at_s=5.0, slows_down_by=30.0)
    run = swarm(*alike(3, 1.5), slow)
    run.run(30)
    told = slow.last_no is not None and slow.last_no.is_lasting
    before = slow.num_trained
    slow.slows_down_by = 1.0
    run.run(100)

    assert told
    assert slow.num_trained > before + 50


def test_where_only_a_slow_node_is_left_it_gets_all_the_work() -> None:
    slow = node(9, 0.8)
    fast = alike(2, 1.5)
    run = swarm(slow, *fast, lease_timeout_s=20.0)
    run.run(15)
    trained = slow.num_trained
    for each in fast:
        each.stops_at_s = run.now_s
    run.run(5, limit_s=run.now_s + 1000.0)

    # What the others had left is used first.
    assert slow.num_trained - trained >= 2 * 24
    assert run.step == 20


@pytest.mark.parametrize("num_slow", [0, 1])
def test_without_staleness_work_is_scheduled_and_a_slow_node_holds_nothing_up(
    num_slow: int,
) -> None:
    run = swarm(*alike(3, 1.5), *[node(9, 1.2)] * num_slow, max_staleness=0)
    run.run(40)

    # Training, broadcast, and making all rollouts, one after the other.
    assert TRAIN_S / run.utilisation < 1.15 * (TRAIN_S + 0.1 + 1 / 1.5)
    assert run.wasted_share == 0.0


def test_a_node_that_slows_down_does_not_hold_up_the_learner() -> None:
    nodes = [*alike(2, 1.1), node(9, 12.0, slows_down_at_s=20.0, slows_down_by=40.0)]
    run = swarm(*nodes)
    run.run(60)

    assert run.utilisation > 0.95
    # What it held was asked of others, and little of that was needed twice.
    assert 0 < run.outcomes["answered"] < 0.02 * run.outcomes.total()


def test_a_node_that_dies_silently_costs_less_than_a_lease_timeout() -> None:
    nodes = [*alike(2, 1.3), node(9, 12.0)]
    nodes[2].stops_at_s = 15.3
    run = swarm(*nodes, lease_timeout_s=1000.0)
    run.run(60)

    assert run.utilisation > 0.95


def test_after_a_resume_the_accounting_starts_from_the_resumed_version() -> None:
    fresh, resumed = swarm(*alike(3, 1.5)), swarm(*alike(3, 1.5))
    resumed = PacingSwarm(pacing_rules(), alike(3, 1.5), train_s=TRAIN_S, seed=1, first_step=500)
    for run in (fresh, resumed):
        run.run(30)

    assert resumed.step == 530
    assert resumed.starts_s == fresh.starts_s
    assert resumed.wasted_share == 0.0


def test_no_more_is_outstanding_than_the_bound_allows() -> None:
    run = swarm(*alike(20, 6.0))
    run.run(20)

    assert run.max_outstanding <= run.rules.max_groups_outstanding


def test_long_answers_are_trained_on_as_often_as_short_ones() -> None:
    def tokens_of(prompt: int) -> int:
        return 24 if prompt % 4 == 0 else 4

    nodes = [*alike(3, 1.4), node(9, 2.0)]
    run = PacingSwarm(pacing_rules(), nodes, train_s=TRAIN_S, seed=2, tokens_of=tokens_of)
    run.run(80)

    ends = run.group_ends
    trained = [prompt for prompt, how in ends.items() if how == "trained"]
    long = sum(prompt % 4 == 0 for prompt in trained) / len(trained)
    assert 0.23 < long < 0.27
    assert run.wasted_share < 0.02


scenarios = st.fixed_dictionaries(
    {
        "max_staleness": st.integers(0, 4),
        "publish_every": st.integers(1, 2),
        "groups_per_step": st.integers(2, 8),
        "group_size": st.integers(2, 8),
        "num_nodes": st.integers(1, 12),
        "supply": st.floats(0.4, 3.0),
        "differ": st.sampled_from([0.0, 0.5, 1.0]),
        "spread": st.sampled_from([0.0, 0.3, 0.6]),
        "broadcast_s": st.sampled_from([0.0, 0.2, 0.9]),
        "lease_prompts": st.sampled_from([None, 1, 2]),
        "seed": st.integers(0, 1000),
    }
)


@settings(max_examples=40, deadline=None)
@given(scenario=scenarios)
def test_every_leased_prompt_ends_once_no_update_is_stale_and_the_learner_is_never_stuck(
    scenario: dict[str, float],
) -> None:
    run = _run(scenario)
    run.run(12, limit_s=2000.0)

    # A stale batch, or a second end of one prompt, would have raised.
    assert run.step == 12
    dispatch = run.dispatch
    left = {*dispatch.open_groups, *(group.group_id for group in dispatch.ready)}
    assert left.isdisjoint(run.group_ends)
    assert left | set(run.group_ends) == run.leased_groups
    assert dispatch.num_outstanding <= run.rules.max_groups_outstanding
    per_step = run.rules.groups_per_step * run.rules.group_size
    assert run.outcomes["trained"] >= 12 * per_step
    # Nothing is asked for twice without bound.
    assert run.outcomes["answered"] <= 12 * run.rules.max_backups + 2 * per_step


def _run(scenario: dict[str, float]) -> PacingSwarm:
    rng = random.Random(int(scenario["seed"]))
    staleness, groups = int(scenario["max_staleness"]), int(scenario["groups_per_step"])
    size, num_nodes = int(scenario["group_size"]), int(scenario["num_nodes"])
    weights = [math.exp(rng.gauss(0, scenario["differ"])) for _ in range(num_nodes)]
    per_s = scenario["supply"] * groups * size / sum(weights)
    nodes = [
        node(
            i,
            weight * per_s,
            spread=scenario["spread"],
            broadcast_s=scenario["broadcast_s"],
        )
        for i, weight in enumerate(weights)
    ]
    return swarm(
        *nodes,
        seed=int(scenario["seed"]),
        max_staleness=staleness,
        publish_every=min(int(scenario["publish_every"]), staleness + 1),
        groups_per_step=groups,
        group_size=size,
        lease_prompts=scenario["lease_prompts"],
    )


@pytest.mark.parametrize("supply", [0.5, 0.8, 1.2])
@pytest.mark.parametrize("broadcast_s", [0.1, 0.8])
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 3])
def test_the_learner_is_as_busy_as_the_capacity_model_says(
    max_staleness: int, broadcast_s: float, supply: float
) -> None:
    run = swarm(*alike(4, supply, broadcast_s=broadcast_s), max_staleness=max_staleness)
    run.run(60)
    per_s = supply * NEEDED_PER_S
    workload = LearnerLoad(rollouts_per_step=24, train_s=TRAIN_S, max_staleness=max_staleness)
    delays = Delays(broadcast_s=broadcast_s, rollout_s=4 * 4 / per_s)
    expected = forecast(workload, delays, rollouts_per_s=per_s)

    # Leases that might be late are not begun, though some of them would be in time.
    assert run.utilisation > 0.8 * expected.utilisation
    assert run.wasted_share < 0.03
