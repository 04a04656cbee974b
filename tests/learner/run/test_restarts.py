from learner.run.restarts import MAX_RESTARTS, Restarts


def test_a_trainer_that_dies_at_the_same_update_again_and_again_is_given_up() -> None:
    restarts = Restarts()
    assert [restarts.may_restart(7) for _ in range(MAX_RESTARTS + 1)] == [True] * MAX_RESTARTS + [
        False
    ]


def test_a_trainer_that_makes_a_new_update_between_its_deaths_is_never_given_up() -> None:
    restarts = Restarts()
    assert all(restarts.may_restart(step) for step in range(5 * MAX_RESTARTS))


def test_dying_earlier_than_before_is_no_new_update() -> None:
    restarts = Restarts()
    assert [restarts.may_restart(step) for step in (7, 0, 3, 7)] == [True, True, True, False]


def test_a_death_before_the_first_update_counts_too() -> None:
    restarts = Restarts()
    assert [restarts.may_restart(0) for _ in range(4)] == [True, True, True, False]


def test_tries_come_at_growing_distances_and_a_new_update_begins_anew() -> None:
    restarts = Restarts()
    waits = []
    for step in (4, 4, 4, 5):
        restarts.may_restart(step)
        waits.append(restarts.wait_s)

    assert waits == [0.0, 5.0, 30.0, 0.0]
