"""Whole swarms on virtual time: what is promised of the real one must hold, come what may."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.simulate.accounts import Accounts
from echo2swarm.simulate.results import SimulationResult
from echo2swarm.simulate.swarm import simulate_swarm
from echo2swarm.simulate.tables import Scenario
from tests.echo2swarm.simulate.samples import node, scenario


def num_trained(result: SimulationResult) -> int:
    return sum(kind.num_trained for kind in result.kinds)


def assert_promises_held(result: SimulationResult, of: Scenario) -> None:
    """Invariants 1 and 4, as far as the result tells; the simulation asserts them as it runs."""
    learner = of.learner
    assert all(lag <= learner.max_staleness for lag in result.staleness)
    assert sum(result.staleness.values()) == result.num_steps * of.rollouts_per_step
    assert num_trained(result) == result.num_steps * of.rollouts_per_step
    assert result.num_groups_trained == result.num_steps * learner.prompts_per_step
    num_dropped = sum(result.groups_dropped.values())
    assert result.num_groups_leased == result.num_groups_trained + num_dropped


def test_a_swarm_with_enough_nodes_keeps_the_learner_busy() -> None:
    of = scenario(nodes=[node(count=6)])
    result = simulate_swarm(of)

    assert result.is_finished
    assert result.busy_share is not None
    assert result.busy_share >= 0.97
    assert_promises_held(result, of)


def test_half_of_the_nodes_keep_the_learner_busy_for_half_of_the_time() -> None:
    result = simulate_swarm(scenario(run={"num_steps": 30}, nodes=[node(count=1)]))

    assert result.busy_share == pytest.approx(0.5, abs=0.06)
    assert result.bubble_share == pytest.approx(0.5, abs=0.06)


def test_groups_without_signal_are_replaced_and_nothing_else_changes_for_the_learner() -> None:
    of = scenario(
        learner={"equal_groups": "replace"},
        answers={"equal_share": 0.4},
        nodes=[node(count=10)],
    )

    result = simulate_swarm(of)

    assert result.is_finished
    assert_promises_held(result, of)
    num_equal = result.groups_dropped[DropReason.EQUAL]
    assert num_equal / (num_equal + result.num_groups_trained) == pytest.approx(0.4, abs=0.05)
    assert result.busy_share is not None
    assert result.busy_share >= 0.95


def test_where_no_group_has_a_signal_the_bound_lets_the_learner_go_on() -> None:
    of = scenario(
        learner={"equal_groups": "replace", "max_replaced": 1},
        answers={"equal_share": 1.0},
        run={"num_steps": 10},
        nodes=[node(count=8)],
    )

    result = simulate_swarm(of)

    assert result.is_finished
    assert_promises_held(result, of)
    most = of.max_replaced * (result.num_steps + 1)
    assert 0.8 * most <= result.groups_dropped[DropReason.EQUAL] <= most


def test_the_same_seed_gives_the_same_result() -> None:
    of = scenario(
        answers={"cv": 0.6},
        nodes=[node(batch_cv=0.2, speed_cv=0.3, mean_stay_s=60.0, mean_away_s=20.0)],
    )

    assert simulate_swarm(of) == simulate_swarm(of)


def test_another_seed_gives_another_result() -> None:
    of = scenario(answers={"cv": 0.6}, nodes=[node(batch_cv=0.2)])

    assert simulate_swarm(of).duration_s != simulate_swarm(of.with_seed(2)).duration_s


def test_without_staleness_every_rollout_is_on_policy() -> None:
    of = scenario(learner={"max_staleness": 0})
    result = simulate_swarm(of)

    assert result.is_finished
    assert set(result.staleness) == {0}
    assert result.busy_share is not None
    assert result.busy_share < 0.9


def test_rare_versions_are_used_up_to_the_bound() -> None:
    of = scenario(learner={"max_staleness": 3, "publish_every": 3})
    result = simulate_swarm(of)

    assert result.is_finished
    assert_promises_held(result, of)


NODES = st.fixed_dictionaries(
    {
        "name": st.just("node"),
        "count": st.integers(1, 6),
        "rollouts_per_s": st.sampled_from([0.05, 0.4, 1.5]),
        "batch_cv": st.sampled_from([0.0, 0.7]),
        "batching": st.sampled_from(["total", "longest"]),
        "concurrency": st.sampled_from([1, 4, 64]),
        "mean_stay_s": st.sampled_from([None, 15.0, 90.0]),
        "mean_away_s": st.sampled_from([None, 10.0]),
        "refused_share": st.sampled_from([0.0, 0.3]),
        "load_s": st.sampled_from([0.0, 4.0]),
    }
)
EVENTS = st.lists(
    st.sampled_from(
        [
            {"at_s": 20.0, "kind": "outage", "share": 0.5, "for_s": 15.0},
            {"at_s": 35.0, "kind": "learner_outage", "for_s": 8.0},
            {"at_s": 36.0, "kind": "learner_outage", "for_s": 8.0},
            {"at_s": 45.0, "kind": "leave", "share": 0.4},
            {"at_s": 50.0, "kind": "speed", "share": 0.5, "factor": 0.2},
            {"at_s": 60.0, "kind": "join", "nodes": "node", "count": 2},
        ]
    ),
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(
    nodes=NODES,
    events=EVENTS,
    max_staleness=st.integers(0, 4),
    publish_every=st.integers(1, 3),
    lease_prompts=st.sampled_from([None, 1, 3]),
    fixed_s=st.sampled_from([0.0, 3.0, 25.0]),
    lease_timeout_s=st.sampled_from([8.0, 300.0]),
    seed=st.integers(0, 1000),
)
def test_come_what_may_no_rollout_is_too_old_and_no_prompt_is_lost(  # noqa: PLR0917
    nodes: dict[str, Any],
    events: list[dict[str, Any]],
    max_staleness: int,
    publish_every: int,
    lease_prompts: int | None,
    fixed_s: float,
    lease_timeout_s: float,
    seed: int,
) -> None:
    of = scenario(
        run={"num_steps": 5, "seed": seed, "give_up_s": 150.0},
        learner={
            "max_staleness": max_staleness,
            "publish_every": min(publish_every, max_staleness + 1),
            "lease_prompts": lease_prompts,
            "lease_timeout_s": lease_timeout_s,
            "train_s": 5.0,
        },
        answers={"cv": 0.5},
        broadcast={"fixed_s": fixed_s},
        selector={"every_s": 10.0},
        nodes=[nodes],
        events=events,
    )
    result = simulate_swarm(of)

    assert_promises_held(result, of)
    assert result.is_finished or result.ended.startswith("stuck at step")


def test_what_a_dead_node_had_in_hand_is_leased_to_others() -> None:
    of = scenario(
        nodes=[node(count=1, name="victim", rollouts_per_s=0.5), node(count=3)],
        events=[{"at_s": 20.0, "kind": "outage", "nodes": "victim", "for_s": 10_000.0}],
    )
    result = simulate_swarm(of)

    assert result.is_finished
    assert result.leases_ended.get("node_lost", 0) > 0
    assert result.num_rollouts_released > 0
    assert_promises_held(result, of)


def test_a_learner_that_was_killed_goes_on_where_it_was() -> None:
    of = scenario(events=[{"at_s": 45.0, "kind": "learner_outage", "for_s": 30.0}])
    result = simulate_swarm(of)

    assert result.is_finished
    assert result.leases_ended.get("restarted", 0) > 0
    assert result.away_s >= 30.0
    assert_promises_held(result, of)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"events": [{"at_s": 30.0, "kind": "leave"}]},
            "no node is left, and none will come",
        ),
        (
            {"nodes": [node(mean_stay_s=20.0)]},
            "no node is left, and none will come",
        ),
        (
            {"events": [{"at_s": 30.0, "kind": "outage", "for_s": 1e6}]},
            "no node is there",
        ),
        (
            {"nodes": [node(usd_per_hour=5.0)], "selector": {"max_usd_per_hour": 1.0}},
            "none of 4 nodes is activated (standby:",
        ),
        (
            {"nodes": [node(refused_share=1.0)]},
            "stuck at step 0 with 0 of 4 groups",
        ),
    ],
)
def test_a_learner_that_gets_stuck_says_what_it_lacked(changes: dict[str, Any], says: str) -> None:
    result = simulate_swarm(scenario(run={"give_up_s": 300.0}, **changes))

    assert not result.is_finished
    assert says in result.ended
    assert result.num_steps < 12


def test_nodes_that_are_not_needed_are_not_paid_for() -> None:
    of = scenario(
        run={"num_steps": 40},
        nodes=[node(count=30, usd_per_hour=1.0, startup_s=1.0)],
    )
    result = simulate_swarm(of)

    active_share = result.kinds[0].active_s / (30 * result.duration_s)
    assert active_share < 0.6
    assert result.steps[-1].num_active < 20 < result.steps[-1].num_present
    assert result.node_usd == pytest.approx(result.kinds[0].active_s / 3600)
    assert result.busy_share is not None
    assert result.busy_share >= 0.95


def test_who_boasts_is_put_on_standby_for_what_it_delivers() -> None:
    of = scenario(
        run={"num_steps": 60},
        nodes=[
            node(name="honest", count=6, usd_per_hour=1.0, startup_s=1.0),
            node(
                name="boaster",
                count=6,
                usd_per_hour=1.0,
                startup_s=1.0,
                rollouts_per_s=0.1,
                claimed_rollouts_per_s=1.6,
            ),
        ],
    )
    result = simulate_swarm(of)

    honest, boaster = result.kinds
    assert boaster.active_s < honest.active_s
    assert boaster.num_trained < honest.num_trained / 4


def test_a_price_that_rises_is_paid_only_from_then_on() -> None:
    of = scenario(
        nodes=[node(usd_per_hour=1.0)],
        events=[{"at_s": 60.0, "kind": "price", "usd_per_hour": 3600.0}],
    )
    result = simulate_swarm(of)

    node_seconds = 4 * (result.duration_s - 60.0)
    assert 0.8 * node_seconds <= result.node_usd <= node_seconds + 0.1


def test_slow_broadcasts_are_waited_for_where_s_does_not_cover_them() -> None:
    fast = simulate_swarm(scenario(learner={"max_staleness": 1}, broadcast={"fixed_s": 0.0}))
    slow = simulate_swarm(scenario(learner={"max_staleness": 1}, broadcast={"fixed_s": 30.0}))

    assert slow.period_s is not None
    assert fast.period_s is not None
    assert slow.period_s > fast.period_s + 5


def test_progress_is_told_step_by_step() -> None:
    seen: list[int] = []
    simulate_swarm(scenario(), on_step=lambda entry: seen.append(entry.step))

    assert seen == list(range(1, 13))


def test_a_prompt_that_is_over_can_not_be_leased_again() -> None:
    book = Accounts()
    book.leased(3)
    book.dropped(3, DropReason.STALE)

    with pytest.raises(AssertionError, match="is over, and was leased again"):
        book.leased(3)
    with pytest.raises(AssertionError, match="was not leased"):
        book.dropped(3, DropReason.STALE)
    with pytest.raises(AssertionError, match="was not leased"):
        book.dropped(2, DropReason.STALE)
