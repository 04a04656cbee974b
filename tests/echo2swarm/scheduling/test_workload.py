"""The leases in hand: rule by rule, and over all histories."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from echo2swarm.scheduling.workload import (
    Apply,
    Ending,
    Forget,
    GiveBack,
    LeaseDone,
    LeasePart,
    SampleParts,
    Workload,
)
from protocols.ids import PolicyVersion
from protocols.leases import Lease, LeasedGroup, SampleSpec
from protocols.packed import pack_tokens
from protocols.sampling import SamplingParams

SAMPLING = SamplingParams(1.0, 8, (2,))
V0, V1, V2 = PolicyVersion(0), PolicyVersion(1), PolicyVersion(2)


def lease(
    name: str = "lease-000",
    *,
    num_groups: int = 2,
    group_size: int = 4,
    min_version: int = 0,
    deadline_step: int = 2,
    sampling: SamplingParams = SAMPLING,
    max_version: int | None = None,
) -> Lease:
    first = int(name.rpartition("-")[2]) * 100
    groups = tuple(
        LeasedGroup(first + i, pack_tokens([1]), tuple(SampleSpec(j, j) for j in range(group_size)))
        for i in range(num_groups)
    )
    return Lease(name, min_version, deadline_step, groups, sampling, max_version)


def workload(
    *leases: Lease, max_leases: int = 2, max_batch: int = 8, is_continuous: bool = False
) -> Workload:
    work = Workload(max_leases=max_leases, max_batch=max_batch, is_continuous=is_continuous)
    work.take(is_wanted=True)
    for each in leases:
        assert work.add(each) == []
    return work


def parts_of(job: object) -> tuple[LeasePart, ...]:
    assert isinstance(job, SampleParts)
    return job.parts


def test_no_work_is_asked_for_without_a_policy_or_while_not_active() -> None:
    work = Workload(max_leases=2, max_batch=8)
    assert not work.may_ask(V0)
    work.take(is_wanted=True)
    assert not work.may_ask(None)
    assert work.may_ask(V0)


def test_questions_and_leases_together_are_bounded() -> None:
    work = workload(lease())
    assert work.may_ask(V0)
    work.asked(V0)
    assert not work.may_ask(V0)
    work.answered(V0)
    assert work.may_ask(V0)


def test_a_question_for_an_older_version_does_not_hold_up_one_for_the_new() -> None:
    work = workload()
    work.asked(V0)
    work.asked(V0)

    assert not work.may_ask(V0)
    assert work.may_ask(V1)


def test_overtaken_questions_are_bounded_too() -> None:
    work = workload()
    for version in (V0, V0, V1, V1):
        work.asked(version)

    assert not work.may_ask(V2)
    work.answered(V0)
    work.answered(V1)
    assert work.asking == (V0, V1)
    assert work.may_ask(V2)


def test_a_newer_version_is_applied_before_more_is_sampled() -> None:
    work = workload(lease())

    assert work.next_job(None, ()) is None
    assert work.next_job(None, [V0]) == Apply(V0)
    assert work.next_job(V0, [V2]) == Apply(V2)
    assert isinstance(work.next_job(V2, [V2]), SampleParts)


@pytest.mark.parametrize("is_continuous", [False, True])
def test_a_lease_for_one_version_keeps_the_engine_at_it_until_its_last_verdict(
    is_continuous: bool,
) -> None:
    kept = lease(num_groups=1, min_version=1, max_version=1)
    work = workload(kept, is_continuous=is_continuous)

    (part,) = parts_of(work.next_job(V1, [V1, V2]))
    assert work.next_job(V1, [V1, V2]) is None
    assert work.sampled(part)
    assert work.next_job(V1, [V1, V2]) is None
    assert not work.is_kept(V1)
    assert work.submitted(kept.lease_id, 4) == [LeaseDone(kept.lease_id)]
    assert work.is_kept(V1)
    assert work.next_job(V1, [V1, V2]) == Apply(V2)


def test_after_such_a_lease_the_engine_stays_until_another_lease_comes_or_none_does() -> None:
    def done() -> Workload:
        kept = lease(num_groups=1, min_version=1, max_version=1)
        work = workload(kept)
        (part,) = parts_of(work.next_job(V1, [V1]))
        work.sampled(part)
        work.submitted(kept.lease_id, 4)
        return work

    work = done()
    assert work.is_kept(V1)
    assert not work.is_kept(V2)
    assert not work.is_kept(None)
    work.add(lease("lease-001"))
    assert not work.is_kept(V1)

    work = done()
    work.let_go()
    assert not work.is_kept(V1)

    work = done()
    work.take(is_wanted=False)
    assert not work.is_kept(V1)


def test_the_engine_does_not_stay_for_a_lease_that_was_given_back() -> None:
    kept = lease(num_groups=1, min_version=1, max_version=1)
    work = workload(kept)

    assert work.hand_back("leaving") == [GiveBack(kept.lease_id, "leaving")]
    assert not work.is_kept(V1)


@pytest.mark.parametrize("is_continuous", [False, True])
def test_other_leases_are_sampled_with_the_version_that_is_kept_if_they_allow_it(
    is_continuous: bool,
) -> None:
    kept = lease("lease-000", num_groups=1, min_version=1, max_version=1)
    newer = lease("lease-001", num_groups=1, min_version=2)
    older = lease("lease-002", num_groups=1, min_version=0)
    work = workload(kept, newer, older, max_batch=20, is_continuous=is_continuous)

    jobs = [work.next_job(V1, [V1, V2]) for _ in range(2)]

    sampled = {part.lease_id for job in jobs if job for part in parts_of(job)}
    assert sampled == {kept.lease_id, older.lease_id}
    assert work.next_job(V1, [V1, V2]) is None


def test_a_lease_for_a_version_that_the_engine_is_past_goes_back_unsampled() -> None:
    kept, other = lease("lease-000", min_version=1, max_version=1), lease("lease-001")
    work = workload(kept, other)

    assert work.passed(None) == []
    assert work.passed(V1) == []
    job = work.next_job(V2, [V2])
    endings = work.passed(V2)

    assert {part.lease_id for part in parts_of(job)} == {other.lease_id}
    assert endings == [GiveBack(kept.lease_id, "the engine is at version 2 already")]
    assert not work.has(kept.lease_id)


def test_a_lease_for_a_version_that_the_engine_has_not_reached_does_not_hold_it_back() -> None:
    work = workload(lease(min_version=1, max_version=1))

    assert work.next_job(V0, [V0]) is None
    assert work.next_job(V0, [V0, V1]) == Apply(V1)


def test_what_was_sampled_of_such_a_lease_is_submitted_though_the_engine_went_on() -> None:
    kept = lease(num_groups=1, min_version=1, max_version=1)
    work = workload(kept)
    (part,) = parts_of(work.next_job(V1, [V1]))
    assert work.sampled(part)

    assert work.passed(V2) == []
    assert work.submitted(kept.lease_id, 4) == [LeaseDone(kept.lease_id)]


def test_an_engine_that_comes_back_takes_the_version_that_a_lease_wants() -> None:
    work = workload(lease(min_version=1, max_version=1))

    assert work.next_job(None, [V1, V2]) == Apply(V1)
    assert work.next_job(None, [V0, V2]) == Apply(V2)
    assert not work.died_applying(V1)
    assert work.next_job(None, [V1, V2]) == Apply(V2)


def test_a_version_that_cannot_be_applied_is_not_tried_for_now() -> None:
    work = workload(lease())
    work.refuse_version(V1)

    assert isinstance(work.next_job(V0, [V1]), SampleParts)
    assert work.next_job(V0, [V2]) == Apply(V2)


def test_an_engine_without_a_policy_gets_an_older_one_if_the_newest_cannot_be_applied() -> None:
    work = workload(lease())
    work.refuse_version(V2)

    assert work.next_job(None, [V0, V1, V2]) == Apply(V1)
    assert work.next_job(None, [V2]) is None


def test_an_engine_that_died_of_a_version_comes_back_on_the_old_one_and_tries_once_more() -> None:
    work = workload(lease())

    assert not work.died_applying(V1)
    assert work.next_job(None, [V0, V1]) == Apply(V0)
    assert work.next_job(V0, [V0, V1]) == Apply(V1)
    assert work.died_applying(V1)
    assert work.next_job(None, [V0, V1]) == Apply(V0)
    assert isinstance(work.next_job(V0, [V0, V1]), SampleParts)
    assert work.next_job(V0, [V0, V1, V2]) == Apply(V2)


def test_a_refused_version_can_be_tried_again_and_one_death_more_refuses_it_again() -> None:
    work = workload(lease())
    for _ in range(2):
        work.died_applying(V1)
    assert work.next_job(None, [V1]) is None
    work.try_again()

    assert work.next_job(None, [V1]) == Apply(V1)
    assert work.died_applying(V1)


def test_deaths_before_a_version_was_applied_do_not_count_afterwards() -> None:
    work = workload(lease())
    work.died_applying(V1)
    work.applied(V1)

    assert not work.died_applying(V1)


def test_an_engine_that_died_of_the_only_version_gets_it_again() -> None:
    work = workload(lease())
    work.died_applying(V1)

    assert work.next_job(None, [V1]) == Apply(V1)


def test_a_lease_waits_until_its_version_is_applied() -> None:
    work = workload(lease(min_version=1))

    assert work.next_job(V0, [V0]) is None
    assert isinstance(work.next_job(V1, [V1]), SampleParts)


def test_a_large_lease_is_sampled_in_parts_and_small_ones_together() -> None:
    large = workload(lease(num_groups=3), max_batch=8)
    (first,) = parts_of(large.next_job(V0, [V0]))
    assert [g.group_id for g in first.groups] == [0, 1]
    assert large.next_job(V0, [V0]) is None  # one call at a time per lease
    assert large.sampled(first)
    (second,) = parts_of(large.next_job(V0, [V0]))
    assert [g.group_id for g in second.groups] == [2]

    small = workload(lease("lease-001", num_groups=1), lease("lease-002", num_groups=1))
    assert [p.lease_id for p in parts_of(small.next_job(V0, [V0]))] == ["lease-001", "lease-002"]


def test_leases_with_different_sampling_are_not_mixed() -> None:
    other = SamplingParams(0.5, 8, (2,))
    work = workload(
        lease("lease-001", num_groups=1), lease("lease-002", num_groups=1, sampling=other)
    )

    (part,) = parts_of(work.next_job(V0, [V0]))
    assert part.lease_id == "lease-001"


def test_a_group_larger_than_a_batch_is_sampled_anyway() -> None:
    work = workload(lease(num_groups=1, group_size=9), max_batch=4)

    assert parts_of(work.next_job(V0, [V0]))[0].num_completions == 9


def test_a_lease_is_done_when_all_of_it_was_submitted() -> None:
    work = workload(lease(num_groups=1))
    (part,) = parts_of(work.next_job(V0, [V0]))
    work.sampled(part)

    assert work.submitted("lease-000", 3) == []
    assert work.num_rollouts == 1
    assert work.submitted("lease-000", 1) == [LeaseDone("lease-000")]
    assert work.num_leases == 0


def test_what_is_handed_back_waits_for_what_was_finished_of_it() -> None:
    work = workload(lease(num_groups=3))
    (part,) = parts_of(work.next_job(V0, [V0]))
    work.sampled(part)

    assert work.hand_back("engine died") == []
    assert work.submitted("lease-000", 8) == [GiveBack("lease-000", "engine died")]


def test_what_was_sampled_of_a_lease_given_up_meanwhile_is_not_submitted() -> None:
    work = workload(lease())
    (part,) = parts_of(work.next_job(V0, [V0]))

    assert work.hand_back("stopped") == [GiveBack("lease-000", "stopped")]
    assert not work.sampled(part)


def test_an_engine_that_batches_by_itself_is_given_groups_in_turn_as_far_as_there_is_room() -> None:
    work = workload(
        lease("lease-001", group_size=4), lease("lease-002", group_size=2), is_continuous=True
    )

    jobs = [parts_of(work.next_job(V0, [V0])) for _ in range(2)]
    assert [(p.lease_id, len(p.groups), p.num_completions) for (p,) in jobs] == [
        ("lease-001", 1, 4),
        ("lease-001", 1, 4),
    ]
    assert work.next_job(V0, [V0]) is None
    assert work.sampled(jobs[1][0])
    (third,) = parts_of(work.next_job(V0, [V0]))
    assert (third.lease_id, third.num_completions) == ("lease-002", 2)
    assert not work.sampled(jobs[1][0])  # once is enough


def test_small_groups_do_not_overtake_a_large_one_that_waits_for_room() -> None:
    work = workload(
        lease("lease-001", num_groups=1, group_size=4),
        lease("lease-002", num_groups=1, group_size=7),
        lease("lease-003", num_groups=1, group_size=2),
        is_continuous=True,
    )
    (first,) = parts_of(work.next_job(V0, [V0]))

    assert work.next_job(V0, [V0]) is None
    work.sampled(first)
    assert parts_of(work.next_job(V0, [V0]))[0].lease_id == "lease-002"


def test_a_newer_version_goes_first_even_while_groups_are_being_sampled() -> None:
    work = workload(lease(), is_continuous=True)
    assert isinstance(work.next_job(V0, [V0]), SampleParts)

    assert work.next_job(V0, [V0, V1]) == Apply(V1)


def test_draining_keeps_what_is_begun() -> None:
    work = workload(lease("lease-001"), lease("lease-002"))
    work.next_job(V0, [V0])
    work.take(is_wanted=False)

    assert work.hand_back("leaving", only_not_begun=True) == [GiveBack("lease-002", "leaving")]
    assert work.has("lease-001")
    assert work.add(lease("lease-003")) == [
        GiveBack("lease-003", "this node takes no more work now")
    ]


def test_a_lease_past_its_deadline_is_forgotten() -> None:
    work = workload(lease(deadline_step=2))

    assert work.step_heard(2) == []
    (ending,) = work.step_heard(3)
    assert isinstance(ending, Forget)
    assert "past deadline 2" in ending.why
    assert work.next_job(V0, [V0]) is None


def test_a_part_that_cannot_be_sampled_goes_back_with_the_reason() -> None:
    work = workload(lease())
    work.next_job(V0, [V0])

    assert work.not_sampled("lease-000", "prompt too long") == [
        GiveBack("lease-000", "prompt too long")
    ]


class Histories(RuleBasedStateMachine):
    """Any order of events: every lease ends once, and nothing is sampled twice."""

    is_continuous = False

    def __init__(self) -> None:
        super().__init__()
        self.work = Workload(max_leases=2, max_batch=6, is_continuous=self.is_continuous)
        self.num_made = 0
        self.open: dict[str, Lease] = {}
        self.ended: Counter[str] = Counter()
        self.asking: list[PolicyVersion] = []
        self.engine_has: list[tuple[LeasePart, ...]] = []
        self.unsent: Counter[str] = Counter()
        self.sampled: Counter[tuple[int, int]] = Counter()

    def end(self, endings: list[Ending]) -> None:
        for ending in endings:
            self.ended[ending.lease_id] += 1
            was = self.open.pop(ending.lease_id, None)
            if isinstance(ending, LeaseDone):
                assert was is not None
                for group in was.groups:
                    assert all(self.sampled[group.group_id, s.index] == 1 for s in group.samples)
            if not isinstance(ending, Forget):
                assert not self.unsent[ending.lease_id]

    @rule(is_wanted=st.booleans())
    def take(self, is_wanted: bool) -> None:
        self.work.take(is_wanted=is_wanted)

    @rule(version=st.integers(0, 3).map(PolicyVersion))
    def ask(self, version: PolicyVersion) -> None:
        if self.work.may_ask(version):
            self.work.asked(version)
            self.asking.append(version)

    @precondition(lambda self: self.asking)
    @rule(
        has_work=st.booleans(),
        num_groups=st.integers(1, 4),
        group_size=st.integers(1, 8),
        deadline=st.integers(0, 6),
        is_for_one_version=st.booleans(),
    )
    def answer(
        self,
        has_work: bool,
        num_groups: int,
        group_size: int,
        deadline: int,
        is_for_one_version: bool,
    ) -> None:
        version = self.asking.pop(0)
        self.work.answered(version)
        if has_work:
            self.num_made += 1
            made = lease(
                f"lease-{self.num_made:03d}",
                num_groups=num_groups,
                group_size=group_size,
                min_version=version,
                deadline_step=deadline,
                max_version=version if is_for_one_version else None,
            )
            self.open[made.lease_id] = made
            self.end(self.work.add(made))

    @precondition(lambda self: self.is_continuous or not self.engine_has)
    @rule(
        applied=st.none() | st.integers(0, 3).map(PolicyVersion),
        held=st.sets(st.integers(0, 3).map(PolicyVersion)),
    )
    def work_on(self, applied: PolicyVersion | None, held: set[PolicyVersion]) -> None:
        self.end(self.work.passed(applied))
        job = self.work.next_job(applied, held)
        wanted = {each.max_version for each in self.open.values()} - {None}
        if isinstance(job, Apply):
            assert job.version in held
            assert job.version == max(held) or (applied is None and job.version in wanted)
            assert applied is None or job.version > applied
            assert applied not in wanted
        if isinstance(job, SampleParts):
            assert applied is not None
            for part in job.parts:
                of = self.open[part.lease_id]
                assert of.min_version <= applied
                assert of.max_version in (None, applied)
            self.engine_has.append(job.parts)

    @precondition(lambda self: self.engine_has)
    @rule(is_good=st.booleans(), index=st.integers(0, 3))
    def engine_answers(self, is_good: bool, index: int) -> None:
        for part in self.engine_has.pop(index % len(self.engine_has)):
            if not is_good:
                self.end(self.work.not_sampled(part.lease_id, "bad"))
            elif self.work.sampled(part):
                self.unsent[part.lease_id] += part.num_completions
                for group in part.groups:
                    for sample in group.samples:
                        self.sampled[group.group_id, sample.index] += 1

    @precondition(lambda self: +self.unsent)
    @rule(is_known=st.booleans())
    def learner_judges(self, is_known: bool) -> None:
        lease_id = next(iter(+self.unsent))
        num = self.unsent.pop(lease_id)
        self.end(
            self.work.submitted(lease_id, num)
            if is_known
            else self.work.lease_lost(lease_id, "unknown")
        )

    @rule(step=st.integers(0, 7))
    def hear(self, step: int) -> None:
        for ending in self.work.step_heard(step):
            self.unsent.pop(ending.lease_id, None)
            self.end([ending])

    @rule(only_not_begun=st.booleans())
    def hand_back(self, only_not_begun: bool) -> None:
        self.end(self.work.hand_back("leaving", only_not_begun=only_not_begun))

    @invariant()
    def every_lease_ends_once_and_is_in_hand_until_then(self) -> None:
        assert all(n == 1 for n in self.ended.values())
        assert {name for name in self.open if self.work.has(name)} == set(self.open)
        assert self.work.num_leases == len(self.open)

    @invariant()
    def nothing_is_sampled_twice(self) -> None:
        assert all(n == 1 for n in self.sampled.values())

    @invariant()
    def what_is_in_hand_is_bounded_and_never_negative(self) -> None:
        assert (
            0 <= self.work.num_rollouts <= sum(each.num_completions for each in self.open.values())
        )
        assert len(self.asking) + self.work.num_leases <= 5 + 2


TestHistories = pytest.mark.filterwarnings("default")(Histories.TestCase)
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class ContinuousHistories(Histories):
    """The same with an engine that has several parts at once."""

    is_continuous = True


TestContinuousHistories = pytest.mark.filterwarnings("default")(ContinuousHistories.TestCase)
TestContinuousHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
