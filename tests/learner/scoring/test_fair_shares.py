"""Whose completions are scored next, and who has to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.scoring.fair_shares import (
    FIRST_WAIT_S,
    LEARNER,
    LONGEST_WAIT_S,
    MADE_UP_BY,
    MAX_ACCOUNTS,
    MAX_QUEUED,
    MIN_SCORED,
    FairShares,
)

LIMIT_S = 2.0


def shares(*trusted: str) -> FairShares[str]:
    found: FairShares[str] = FairShares(LIMIT_S)
    for owner in trusted:
        found.add(owner, "first")
        assert found.next(num_processes=2) == (owner, "first")
        found.ended(owner, took_s=0.01, num_good=MIN_SCORED, num_timeouts=0, now_s=0.0)
    return found


def do(
    found: FairShares[str],
    *,
    took_s: float = 0.1,
    num_good: int = 1,
    num_timeouts: int = 0,
    now_s: float = 0.0,
    num_processes: int = 2,
) -> tuple[str, str] | None:
    """Do the next job; returns it."""
    job = found.next(num_processes=num_processes)
    if job is not None:
        found.ended(
            job[0], took_s=took_s, num_good=num_good, num_timeouts=num_timeouts, now_s=now_s
        )
    return job


def time_out(found: FairShares[str], owner: str, *, now_s: float = 0.0) -> list[str]:
    found.add(owner, "slow")
    while (job := found.next(num_processes=2)) != (owner, "slow"):
        assert job is not None
    return found.ended(owner, took_s=LIMIT_S, num_good=0, num_timeouts=1, now_s=now_s)


def test_jobs_of_one_node_are_done_in_their_order() -> None:
    found = shares()
    for job in "abc":
        found.add("n", job)
    found.add("n", "0", is_first=True)

    assert [do(found) for _ in range(5)] == [("n", "0"), ("n", "a"), ("n", "b"), ("n", "c"), None]


def test_the_learners_own_work_comes_first() -> None:
    found = shares("n")
    found.add("n", "score")
    found.add(LEARNER, "draw")

    assert do(found) == (LEARNER, "draw")


def test_time_is_shared_not_jobs() -> None:
    found = shares("quick", "costly")
    for number in range(100):
        found.add("quick", f"q{number}")
        found.add("costly", f"c{number}")

    served_s = {"quick": 0.0, "costly": 0.0}
    for _ in range(60):
        job = found.next(num_processes=2)
        assert job is not None
        took_s = 0.4 if job[0] == "costly" else 0.1
        served_s[job[0]] += took_s
        found.ended(job[0], took_s=took_s, num_good=1, num_timeouts=0, now_s=0.0)

    assert served_s["costly"] == pytest.approx(served_s["quick"], rel=0.2)


def test_idle_time_is_not_saved_up() -> None:
    found = shares("early", "late")
    for number in range(50):
        found.add("early", str(number))
        do(found)
    for number in range(10):
        found.add("early", f"e{number}")
        found.add("late", f"l{number}")

    done = [do(found) for _ in range(10)]

    assert sum(job is not None and job[0] == "early" for job in done) >= 4


@pytest.mark.parametrize("num_strangers", [1, 60])
def test_however_many_strangers_there_are_they_count_as_one(num_strangers: int) -> None:
    found = shares("honest")
    for number in range(num_strangers):
        for _ in range(20):
            found.add(f"stranger-{number}", "slow")
    for _ in range(40):
        found.add("honest", "quick")

    done = [job for _ in range(20) if (job := do(found, took_s=0.1, num_good=0)) is not None]

    assert sum(owner == "honest" for owner, _ in done) >= 9


@pytest.mark.parametrize(("num_processes", "most"), [(1, 1), (2, 1), (4, 3)])
def test_strangers_never_have_all_processes_at_work(num_processes: int, most: int) -> None:
    found = shares("honest")
    for number in range(10):
        found.add(f"stranger-{number}", "slow")

    begun = [found.next(num_processes=num_processes) for _ in range(num_processes)]
    found.add("honest", "quick")

    assert sum(job is not None for job in begun) == most
    if most < num_processes:
        assert found.next(num_processes=num_processes) == ("honest", "quick")


def test_a_stranger_runs_one_job_at_a_time() -> None:
    found = shares()
    found.add("new", "a")
    found.add("new", "b")

    assert found.next(num_processes=4) == ("new", "a")
    assert found.next(num_processes=4) is None


def test_who_is_slow_to_score_is_no_longer_trusted() -> None:
    found = shares("slow", "honest")
    for _ in range(20):
        found.add("slow", "x")
        do(found, took_s=0.9 * LIMIT_S)
    for _ in range(4):
        found.add("slow", "x")

    assert found.next(num_processes=2) == ("slow", "x")
    assert found.next(num_processes=2) is None, "it had both processes"


def test_a_new_node_comes_before_one_with_a_timeout() -> None:
    found = shares()
    time_out(found, "hanging")
    found.add("hanging", "again")
    found.add("new", "first")

    assert do(found) == ("new", "first")


def test_one_timeout_is_free_and_from_the_second_on_a_node_waits_longer_each_time() -> None:
    found = shares()
    waits_s = []
    now_s = 0.0
    for _ in range(12):
        time_out(found, "hanging", now_s=now_s)
        wait = found.wait_of("hanging", now_s)
        waits_s.append(wait.until_s - now_s if wait else 0.0)
        now_s += waits_s[-1]

    assert waits_s[:4] == [0.0, FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert max(waits_s) == LONGEST_WAIT_S
    assert found.wait_of("hanging", now_s) is None, "its wait is over"
    assert found.wait_of("other", 0.0) is None


def test_who_has_to_wait_is_told_why() -> None:
    found = shares()
    time_out(found, "hanging")
    time_out(found, "hanging")
    wait = found.wait_of("hanging", 1.0)

    assert wait is not None
    assert wait.why(LIMIT_S, 1.0) == (
        "2 of its completions took longer than 2 s to score: it waits 9 s"
    )


def test_what_else_waits_of_a_node_that_has_to_wait_is_dropped() -> None:
    found = shares("honest")
    time_out(found, "hanging")
    found.add("hanging", "a")
    assert found.next(num_processes=2) == ("hanging", "a")
    found.add("hanging", "b")
    found.add("honest", "c")

    dropped = found.ended("hanging", took_s=2.0, num_good=0, num_timeouts=1, now_s=0.0)

    assert dropped == ["b"]
    assert do(found) == ("honest", "c")


def test_good_completions_make_up_for_timeouts() -> None:
    found = shares()
    for _ in range(10):
        time_out(found, "honest")
        found.add("honest", "good")
        do(found, num_good=MADE_UP_BY)

    assert found.wait_of("honest", 0.0) is None


def test_nobody_waits_for_a_verifier_that_is_too_slow_for_everybody() -> None:
    found = shares()
    for _ in range(30):
        for owner in ("a", "b", "c"):
            time_out(found, owner)
            found.add(owner, "good")
            do(found, num_good=3)
    waits_before = [found.wait_of(owner, 1e6) for owner in "abc"]
    time_out(found, "a", now_s=1e6)

    assert waits_before == [None, None, None]
    assert found.wait_of("a", 1e6) is None


def test_jobs_of_one_node_are_bounded_and_the_learners_own_are_not() -> None:
    found = shares()
    for _ in range(MAX_QUEUED):
        found.add("n", "x")
        found.add(LEARNER, "y")

    assert found.is_full("n")
    assert not found.is_full(LEARNER)
    assert not found.is_full("other")


def test_a_cancelled_job_is_not_done() -> None:
    found = shares()
    found.add("n", "a")
    found.add("n", "b")

    found.cancel("n", "a")
    found.cancel("n", "unknown")
    found.cancel("nobody", "a")

    assert len(found) == 1
    assert do(found) == ("n", "b")


def test_accounts_are_bounded_and_those_with_timeouts_are_kept_longest() -> None:
    found = shares()
    time_out(found, "hanging")
    time_out(found, "hanging")
    for number in range(MAX_ACCOUNTS + 10):
        found.add(f"n{number}", "x")
        do(found)

    assert len(found._accounts) <= MAX_ACCOUNTS
    assert found.wait_of("hanging", 0.0) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", LEARNER]),
            st.booleans(),
            st.floats(0, 3),
            st.integers(0, 3),
            st.integers(0, 2),
        ),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_every_job_is_done_dropped_or_still_waits(
    steps: list[tuple[str, bool, float, int, int]], num_processes: int
) -> None:
    found: FairShares[int] = FairShares(LIMIT_S)
    added, done = 0, 0
    running: list[tuple[str, int]] = []
    for number, (owner, is_add, took_s, num_good, num_timeouts) in enumerate(steps):
        if is_add:
            found.add(owner, number)
            added += 1
        elif len(running) < num_processes and (job := found.next(num_processes=num_processes)):
            running.append(job)
        elif running:
            ended, _ = running.pop(0)
            done += 1 + len(
                found.ended(
                    ended,
                    took_s=took_s,
                    num_good=num_good,
                    num_timeouts=num_timeouts,
                    now_s=float(number),
                )
            )
    assert added == done + len(running) + len(found)


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=40))
def test_no_job_waits_for_ever(owners: list[str]) -> None:
    found: FairShares[int] = FairShares(LIMIT_S)
    for number, owner in enumerate(owners):
        found.add(owner, number)
    done = []
    while (job := found.next(num_processes=1)) is not None:
        done.append(job[1])
        found.ended(job[0], took_s=0.5, num_good=1, num_timeouts=0, now_s=0.0)

    assert sorted(done) == list(range(len(owners)))
