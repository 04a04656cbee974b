"""One evaluation: who gets what, and what counts."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from echo2swarm.scheduling.leases.lease_book import LeaseRecord, LeaseState, SampleKey
from learner.evaluation.held_out import sample_seed
from learner.evaluation.round import EvaluationRound, HeldOutRequest, RoundPlan
from learner.ledger.evaluation_rows import FIRST_GROUP, ScoredSample, group_of
from learner.scoring.messages import Prompt
from protocols.ids import PeerId, PolicyVersion
from protocols.leases import MAX_GROUPS, Lease
from protocols.packed import pack_tokens
from protocols.sampling import SamplingParams

SAMPLING = SamplingParams(0.5, 4, (2,))
ALICE, BOB, CYD = (PeerId(name) for name in ("alice", "bob", "cyd"))
V = PolicyVersion(7)


def plan(*, samples: int = 2, timeout_s: float = 100.0) -> RoundPlan:
    return RoundPlan(
        samples_per_prompt=samples,
        sampling=SAMPLING,
        seed=3,
        lease_timeout_s=timeout_s,
        last_step=50,
    )


def prompts(num: int = 4) -> list[Prompt]:
    return [Prompt(i, pack_tokens([1, i]), f"prompt {i}") for i in range(num)]


def a_round(
    num_prompts: int = 4,
    *,
    samples: int = 2,
    timeout_s: float = 100.0,
    answers: dict[SampleKey, ScoredSample] | None = None,
    leases: Sequence[LeaseRecord] = (),
    num_leases: int = 0,
) -> EvaluationRound:
    return EvaluationRound(
        V,
        prompts(num_prompts),
        plan(samples=samples, timeout_s=timeout_s),
        answers=answers,
        leases=leases,
        num_leases=num_leases,
    )


def asker(peer: PeerId = ALICE, *, most: int = 64) -> HeldOutRequest:
    return HeldOutRequest(peer, "session-1", most)


def answer(reward: float = 1.0, *, peer: PeerId = ALICE) -> ScoredSample:
    return ScoredSample(reward=reward, is_failed=False, num_tokens=3, is_truncated=False, peer=peer)


def granted(
    found: EvaluationRound, peer: PeerId = ALICE, *, most: int = 64, of: int = 9, now_s: float = 0.0
) -> tuple[Lease, LeaseRecord]:
    got = found.grant(asker(peer, most=most), max_evaluators=of, now_s=now_s)
    assert got is not None
    return got


def keys_of(lease: Lease) -> list[SampleKey]:
    return [(g.group_id, s.index) for g in lease.groups for s in g.samples]  # type: ignore[misc]


def take(found: EvaluationRound, record: LeaseRecord, *keys: SampleKey, now_s: float = 1.0) -> None:
    for key in keys or sorted(record.samples):
        found.begin_judging(key, record)
        found.accept(record, key, answer(peer=record.peer), now_s)


def test_a_lease_names_the_one_version_that_it_is_of() -> None:
    lease, record = granted(a_round())

    assert (lease.min_version, lease.max_version) == (V, V)
    assert lease.sampling == SAMPLING
    assert lease.deadline_step == 50
    assert record.min_version == V
    assert {g.group_id for g in lease.groups} == {FIRST_GROUP}


def test_every_sample_has_the_seed_that_it_has_for_every_version() -> None:
    lease, _ = granted(a_round())

    assert [s.seed for s in lease.groups[0].samples] == [sample_seed(3, 0, k) for k in range(2)]


def test_nobody_is_given_what_another_is_at_work_on() -> None:
    found = a_round(2)

    first, second = granted(found, ALICE)[0], granted(found, BOB)[0]

    assert set(keys_of(first)) | set(keys_of(second)) == {
        (group_of(i), k) for i in range(2) for k in range(2)
    }
    assert found.grant(asker(CYD), max_evaluators=9, now_s=0.0) is None


def test_what_a_late_node_has_is_asked_of_another_and_the_first_answer_counts() -> None:
    found = a_round(3)
    _, quick = granted(found, ALICE)
    _, hanging = granted(found, BOB)
    take(found, quick, now_s=2.0)
    _, quick = granted(found, ALICE, now_s=2.0)
    take(found, quick, now_s=4.0)

    assert found.grant(asker(ALICE), max_evaluators=1, now_s=4.0) is None, "it may still come"
    lease, backup = granted(found, ALICE, of=1, now_s=30.0)
    assert set(keys_of(lease)) == hanging.samples
    assert found.grant(asker(CYD), max_evaluators=9, now_s=30.0) is None, "two are enough"
    take(found, backup, now_s=32.0)

    assert found.is_complete
    key = min(hanging.samples)
    assert not found.is_open(key)
    assert not found.is_answered_by(key, hanging), "its own answer comes too late, for no fault"
    found.end_lease(hanging, LeaseState.TIMED_OUT, 100.0)
    assert found.num_missing == 0


@pytest.mark.parametrize("ends_first", ["holder", "backup"])
def test_of_two_that_are_asked_one_may_end_and_the_other_goes_on(ends_first: str) -> None:
    found = a_round(2)
    _, quick = granted(found, ALICE)
    _, holder = granted(found, BOB)
    take(found, quick, now_s=2.0)
    _, backup = granted(found, ALICE, now_s=30.0)
    first, last = (holder, backup) if ends_first == "holder" else (backup, holder)

    found.end_lease(first, LeaseState.NODE_LOST, 31.0)
    assert found.num_missing == 0
    found.end_lease(last, LeaseState.NODE_LOST, 32.0)
    assert found.num_missing == 2


def test_no_more_nodes_evaluate_at_once_than_allowed() -> None:
    found = a_round(10)
    _, record = granted(found, ALICE, of=1)

    assert found.grant(asker(BOB), max_evaluators=1, now_s=0.0) is None
    assert found.grant(asker(ALICE), max_evaluators=1, now_s=0.0) is not None
    for lease in found.leases.active:
        found.end_lease(lease, LeaseState.RETURNED, 0.0)
    assert record.state is LeaseState.RETURNED
    assert found.grant(asker(BOB), max_evaluators=1, now_s=0.0) is not None


def test_what_a_lease_lacked_is_leased_again() -> None:
    found = a_round(1)
    lease, record = granted(found)
    kept, lost = keys_of(lease)
    take(found, record, kept)

    found.end_lease(record, LeaseState.TIMED_OUT, 5.0)

    assert keys_of(granted(found, BOB)[0]) == [lost]


def test_a_late_result_is_taken_if_there_is_none_yet_and_nobody_is_asked_any_more() -> None:
    found = a_round(1)
    _, record = granted(found)
    found.end_lease(record, LeaseState.TIMED_OUT, 5.0)

    take(found, record)

    assert found.is_complete
    assert found.num_missing == 0


def test_a_result_that_came_twice_counts_once_whoever_was_asked() -> None:
    found = a_round(1)
    _, late = granted(found, ALICE)
    found.end_lease(late, LeaseState.TIMED_OUT, 5.0)
    lease, second = granted(found, BOB)
    first_key, other_key = keys_of(lease)

    take(found, late, first_key)

    assert not found.is_open(first_key)
    assert not found.is_answered_by(first_key, second)
    assert found.settle(second, first_key, 6.0) is None
    found.begin_judging(other_key, second)
    ended = found.accept(second, other_key, answer(peer=BOB), 7.0)
    assert ended is not None
    assert ended.state is LeaseState.DONE
    assert found.is_complete


def test_while_a_result_is_judged_its_sample_is_not_open_and_then_again_if_that_fails() -> None:
    found = a_round(1, samples=1)
    lease, record = granted(found)
    (key,) = keys_of(lease)
    found.begin_judging(key, record)

    assert not found.is_open(key)
    assert found.is_answered_by(key, record)
    assert found.settle(record, key, 1.0) is None
    found.end_lease(record, LeaseState.NODE_LOST, 1.0)
    assert found.grant(asker(BOB), max_evaluators=9, now_s=1.0) is None
    is_judging = [found.is_judging]
    found.cancel_judging(key)
    is_judging.append(found.is_judging)
    assert is_judging == [True, False]
    assert keys_of(granted(found, BOB)[0]) == [key]


def test_a_sample_is_missing_again_if_the_last_result_of_it_comes_to_nothing() -> None:
    found = a_round(1, samples=1)
    lease, late = granted(found, ALICE)
    (key,) = keys_of(lease)
    found.end_lease(late, LeaseState.TIMED_OUT, 1.0)
    _, second = granted(found, BOB, now_s=1.0)
    found.begin_judging(key, late)
    # Meanwhile the other result comes, and is not needed.
    assert found.settle(second, key, 2.0) is not None

    found.cancel_judging(key)

    assert keys_of(granted(found, CYD, now_s=2.0)[0]) == [key]


def test_no_lease_has_more_prompts_than_a_message_holds() -> None:
    found = a_round(400, samples=1, timeout_s=1e9)
    _, record = granted(found, of=1)
    take(found, record, now_s=0.01)

    assert len(granted(found, most=1000, of=1)[0].groups) == MAX_GROUPS


def test_a_node_whose_result_was_no_good_is_not_asked_again() -> None:
    found = a_round(1, samples=1)
    lease, record = granted(found)

    ended = found.refuse(record, keys_of(lease)[0], 1.0, is_fault=True)

    assert ended is not None
    assert found.grant(asker(ALICE), max_evaluators=9, now_s=1.0) is None
    assert found.grant(asker(BOB), max_evaluators=9, now_s=1.0) is not None


def test_a_node_is_asked_again_for_what_was_not_its_fault() -> None:
    found = a_round(1, samples=1)
    lease, record = granted(found)

    found.refuse(record, keys_of(lease)[0], 1.0, is_fault=False)

    assert found.grant(asker(ALICE), max_evaluators=9, now_s=1.0) is not None


def test_only_prompts_that_have_all_their_samples_count() -> None:
    found = a_round(3)
    lease, record = granted(found, most=2)
    take(found, record)
    lease, record = granted(found, most=2)
    take(found, record, keys_of(lease)[0])

    assert found.rewards_NK() == [[1.0, 1.0]]
    assert len(found.counted()) == 2
    assert len(found.answers) == 3
    assert not found.is_complete


def test_a_closed_round_gives_no_more_work() -> None:
    found = a_round()
    found.is_closed = True

    assert found.grant(asker(), max_evaluators=9, now_s=0.0) is None


def test_a_node_of_unknown_speed_gets_one_prompt_and_then_what_it_does_in_half_the_time() -> None:
    found = a_round(100, timeout_s=40.0)
    lease, record = granted(found, of=1)
    assert lease.num_completions == 2
    take(found, record, now_s=2.0)  # one second each

    lease, _ = granted(found, of=1, now_s=2.0)

    # 20 s, with the margin for what is known of one lease only
    assert 12 <= lease.num_completions <= 20


def test_what_is_left_is_shared_so_that_all_are_done_at_about_the_same_time() -> None:
    found = a_round(16, timeout_s=1e6)
    _, record = granted(found, of=2)
    take(found, record, now_s=0.1)

    assert granted(found, of=2)[0].num_completions == 15  # of 30


def test_no_lease_is_larger_than_its_node_takes() -> None:
    found = a_round(4)

    assert granted(found, most=1)[0].num_completions == 1


def test_a_node_has_few_leases_at_once() -> None:
    found = a_round(100)
    num = 0
    while found.grant(asker(), max_evaluators=9, now_s=0.0) is not None:
        num += 1

    assert num == 4


def test_a_slow_node_gets_one_sample_if_it_has_none_in_hand_and_no_second_lease() -> None:
    found = a_round(10, timeout_s=10.0)
    _, record = granted(found)
    take(found, record, now_s=90.0)

    assert granted(found, now_s=90.0)[0].num_completions == 1
    assert found.grant(asker(), max_evaluators=9, now_s=90.0) is None


def test_a_round_goes_on_with_the_answers_that_it_had_and_with_fresh_numbers() -> None:
    before = a_round(2)
    lease, record = granted(before)
    take(before, record, keys_of(lease)[0])
    record.state = LeaseState.RESTARTED

    found = a_round(2, answers=before.answers, leases=[record], num_leases=1)

    again, _ = granted(found)
    assert again.lease_id != lease.lease_id
    assert keys_of(lease)[0] not in keys_of(again)
    assert found.num_missing + again.num_completions == 3
    assert found.leases.get(lease.lease_id) is record
    take(found, record, keys_of(lease)[1])
    assert found.rewards_NK() == [[1.0, 1.0]]


class Histories(RuleBasedStateMachine):
    """Whatever nodes do, each sample counts once, and none is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.found = a_round(5, samples=3)
        self.now_s = 0.0
        self.known: list[LeaseRecord] = []
        self.judging: list[tuple[LeaseRecord, SampleKey]] = []
        self.num_accepted = 0

    @rule(peer=st.sampled_from([ALICE, BOB, CYD]), most=st.integers(1, 9), of=st.integers(1, 3))
    def ask(self, peer: PeerId, most: int, of: int) -> None:
        got = self.found.grant(asker(peer, most=most), max_evaluators=of, now_s=self.now_s)
        if got is not None:
            lease, record = got
            assert set(keys_of(lease)) == record.samples
            assert all(self.found.is_open(key) for key in record.samples)
            assert len(self.found.evaluators) <= of or peer in self.found.evaluators
            self.known.append(record)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.known))
        key = data.draw(st.sampled_from(sorted(record.samples)))
        if self.found.is_open(key):
            self.found.begin_judging(key, record)
            self.judging.append((record, key))
        else:
            self.found.settle(record, key, self.now_s)

    @precondition(lambda self: self.judging)
    @rule(outcome=st.sampled_from(["taken", "lost", "no good"]))
    def judged(self, outcome: str) -> None:
        record, key = self.judging.pop(0)
        if outcome == "taken":
            self.found.accept(record, key, answer(), self.now_s)
            self.num_accepted += 1
        else:
            self.found.cancel_judging(key)
            if outcome == "no good":
                self.found.refuse(record, key, self.now_s, is_fault=False)

    @rule(seconds=st.floats(0.1, 60.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for record, state in self.found.leases.overdue(now_s=self.now_s, next_step=0):
            self.found.end_lease(record, state, self.now_s)

    @invariant()
    def each_sample_counts_once(self) -> None:
        assert len(self.found.answers) == self.num_accepted

    @invariant()
    def every_sample_without_answer_is_in_somebodys_hands_or_missing(self) -> None:
        in_hand = {key for lease in self.found.leases.active for key in lease.unsettled}
        judging = {key for _, key in self.judging}
        settled = len(self.found.answers.keys() | in_hand | judging)
        assert settled + self.found.num_missing >= self.found.num_wanted


TestHistories = pytest.mark.filterwarnings("default")(Histories.TestCase)
TestHistories.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
