"""A forecast in words says what binds and what would help."""

from echo2swarm.scheduling.capacity import Delays, LearnerLoad, explain_pace, forecast


def said(*, bound: int = 2, broadcast_s: float = 1.0, rollouts_per_s: float = 12.8) -> str:
    work = LearnerLoad(rollouts_per_step=128, train_s=10, max_staleness=bound)
    wait = Delays(broadcast_s=broadcast_s, rollout_s=2)
    found = forecast(work, wait, rollouts_per_s=rollouts_per_s)
    return explain_pace(found, work, wait, rollouts_per_s=rollouts_per_s)


def test_a_busy_learner() -> None:
    assert said(rollouts_per_s=25.6) == (
        "The learner trains 100 % of the time: 25.6 rollouts/s are there, 50 % of it idle, "
        "12.8 are required."
    )


def test_too_few_rollouts() -> None:
    assert said(rollouts_per_s=6.4) == (
        "The learner trains 50 % of the time, for lack of rollouts: 6.40/s are there, "
        "12.8 required."
    )


def test_no_rollouts_on_policy() -> None:
    assert "0/s are there, 12.8 required" in said(rollouts_per_s=0, bound=0)


def test_weights_that_take_too_long() -> None:
    assert said(broadcast_s=30) == (
        "The learner trains 58 % of the time: new weights take 30 s and a rollout 2.00 s, which "
        "max_staleness 2 does not cover. It would be 5 that does."
    )
