"""When updates start, and which version a node will have."""

from math import inf

import pytest

from echo2swarm.scheduling.leases.learner_pace import LearnerPace
from protocols.ids import PolicyVersion


def learner(*batches_at_s: float, first: int = 0) -> LearnerPace:
    made = LearnerPace(first)
    for step, at_s in enumerate(batches_at_s, start=first + 1):
        made.batch_taken(step, at_s)
    return made


def test_nothing_is_late_before_two_batches_were_taken() -> None:
    assert [learner(*at_s).start_s(9, 50.0) for at_s in ((), (10.0,))] == [inf, inf]


def test_after_a_resume_the_accounting_starts_from_the_resumed_version() -> None:
    found = learner(10.0, 14.0, first=100)

    assert found.next_step == 102
    assert found.start_s(102, 15.0) == 18.0


def test_what_is_planned_with_is_the_mean_of_the_last_periods() -> None:
    # Two steps for each version: they differ by turns.
    found = learner(0.0, 1.0, 4.0, 5.0, 8.0)

    assert found.period_s(8.0) == pytest.approx(2.0)


def test_a_period_that_slow_nodes_made_longer_is_not_planned_with() -> None:
    found = learner(0.0, 10.0)
    found.batch_taken(3, 20.0, attainable_s=4.0)

    assert found.period_s(20.0) == 4.0


def test_without_a_new_batch_the_present_period_grows() -> None:
    found = learner(0.0, 2.0)

    assert [found.period_s(now_s) for now_s in (3.0, 12.0)] == [2.0, 10.0]
    assert [found.overdue_s(now_s) for now_s in (3.0, 12.0)] == [0.0, 8.0]
    assert [found.num_periods_overdue(now_s) for now_s in (3.0, 12.0)] == [0.0, 4.0]
    assert learner(0.0).num_periods_overdue(12.0) == 0.0


def test_the_time_from_a_batch_to_the_next_question_is_the_updates() -> None:
    found = LearnerPace(0)
    for step in range(4):
        found.batch_taken(step + 1, 10.0 * step)
        found.is_free(10.0 * step + 3.0)
        found.is_free(10.0 * step + 9.0)

    assert found.busy_s == 3.0


def test_a_node_samples_with_the_newest_version_that_has_reached_it_by_then() -> None:
    found = LearnerPace(0)
    for version, at_s in ((0, 0.0), (1, 10.0), (2, 20.0)):
        found.version_published(PolicyVersion(version), at_s, max_staleness=2)

    def version_at(start_s: float, broadcast_s: float | None) -> int:
        return found.version_at(start_s, applied=PolicyVersion(0), broadcast_s=broadcast_s)

    assert [version_at(21.0, b) for b in (0.5, 2.0, 30.0, None)] == [2, 1, 0, 0]


def test_versions_too_old_for_any_update_are_forgotten_but_never_the_newest() -> None:
    found = LearnerPace(0)
    for version in range(3):
        found.version_published(PolicyVersion(version), 0.0, max_staleness=1)
    found.batch_taken(9, 1.0)
    found.version_published(PolicyVersion(2), 1.0, max_staleness=1)

    assert list(found.published) == [2]
