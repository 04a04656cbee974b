"""The supply that keeps the learner busy."""

from math import inf, isclose

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.capacity import required_rollouts_per_s


def required(
    *, bound: int, every: int = 1, broadcast_s: float = 0.0, rollout_s: float = 0.0
) -> float:
    return required_rollouts_per_s(
        rollouts_per_step=128,
        train_s=10.0,
        max_staleness=bound,
        publish_every=every,
        broadcast_s=broadcast_s,
        rollout_s=rollout_s,
    )


def test_with_slack_one_step_of_rollouts_per_update_is_enough() -> None:
    assert required(bound=2, broadcast_s=5, rollout_s=5) == 12.8


def test_a_slow_broadcast_asks_for_more() -> None:
    assert required(bound=1, broadcast_s=4, rollout_s=2) == 128 / 4


def test_a_learner_that_must_wait_for_its_own_version_cannot_be_kept_busy() -> None:
    assert required(bound=0) == inf
    assert required(bound=1, broadcast_s=6, rollout_s=4) == inf


def test_rarer_versions_leave_less_time() -> None:
    assert required(bound=2, every=2, broadcast_s=5) == 128 / 5


@given(
    bound=st.integers(0, 5),
    broadcast_s=st.floats(0, 100),
    rollout_s=st.floats(0, 100),
    more_s=st.floats(0, 10),
)
def test_slower_never_asks_for_less(
    bound: int, broadcast_s: float, rollout_s: float, more_s: float
) -> None:
    base = required(bound=bound, broadcast_s=broadcast_s, rollout_s=rollout_s)
    slower = required(bound=bound, broadcast_s=broadcast_s + more_s, rollout_s=rollout_s)

    assert slower >= base or isclose(slower, base)
    assert base >= 12.8
