"""Who hands in what the policy does not sample is found out; who samples honestly is not."""

import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from learner.nodes.sampling_record import MAX_EVIDENCE, SamplingRecord
from learner.training.messages import SampledBy

POLICY = [0.9, 0.05, 0.03, 0.02]
FLAT, SHARP = ([p**e / sum(q**e for q in POLICY) for p in POLICY] for e in (0.8, 2.0))


def evidence_of(tokens: list[int], claims: list[float]) -> SampledBy:
    flat, sharp = (
        sum(math.log(q[t]) - c for t, c in zip(tokens, claims, strict=True)) for q in (FLAT, SHARP)
    )
    return SampledBy(1, 0, flat, sharp)


def worst_of(record: SamplingRecord, rollouts: list[SampledBy]) -> float:
    worst = 0.0
    for found in rollouts:
        record.add(found)
        worst = max(worst, record.evidence)
    return worst


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4))
def test_an_honest_node_is_never_found_out_whatever_version_it_samples(
    seed: int, weights: list[float]
) -> None:
    rng = random.Random(seed)
    behaviour = [weight / sum(weights) for weight in weights]
    rollouts = []
    for _ in range(300):
        tokens = rng.choices(range(4), behaviour, k=4)
        rollouts.append(evidence_of(tokens, [math.log(behaviour[t]) for t in tokens]))

    assert worst_of(SamplingRecord(), rollouts) < MAX_EVIDENCE


def test_unlikely_tokens_with_true_logprobs_are_found_out_soon() -> None:
    record = SamplingRecord()
    tokens = [0, 0, 3, 0]

    for _ in range(40):
        record.add(evidence_of(tokens, [math.log(POLICY[t]) for t in tokens]))

    assert "not sampled" in record.why_not_sampled([record])


def test_who_hands_in_the_likeliest_tokens_only_is_found_out() -> None:
    record = SamplingRecord()

    for _ in range(80):
        record.add(evidence_of([0] * 4, [math.log(POLICY[0])] * 4))

    assert "not sampled" in record.why_not_sampled([record])


def test_a_node_that_was_honest_for_long_is_found_out_as_soon() -> None:
    rng, record = random.Random(0), SamplingRecord()
    for _ in range(2000):
        tokens = rng.choices(range(4), POLICY, k=4)
        record.add(evidence_of(tokens, [math.log(POLICY[t]) for t in tokens]))
    assert not record.why_not_sampled([record])

    tokens = [0, 0, 3, 0]
    for _ in range(40):
        record.add(evidence_of(tokens, [math.log(POLICY[t]) for t in tokens]))

    assert record.why_not_sampled([record])


def test_claims_that_are_too_low_are_found_out_at_once() -> None:
    record = SamplingRecord()

    record.add(evidence_of([0, 0, 0, 0], [-5.0] * 4))

    assert record.why_not_sampled([record])


def test_what_is_left_out_counts_against_a_node_if_it_is_not_so_with_all() -> None:
    honest, bad = SamplingRecord(), SamplingRecord()
    honest.add(SampledBy(100, 2, 0.0, 0.0))
    bad.add(SampledBy(20, 18, 0.0, 0.0))

    assert "90% of its rollouts, against 2%" in bad.why_not_sampled([honest, bad])
    assert not honest.why_not_sampled([honest, bad])

    honest.add(SampledBy(100, 90, 0.0, 0.0))

    assert not bad.why_not_sampled([honest, bad])
    assert bad.num_left_out == 18


def test_few_rollouts_left_out_prove_nothing() -> None:
    record = SamplingRecord()
    record.add(SampledBy(15, 15, 0.0, 0.0))

    assert not record.why_not_sampled([record])


def test_forgiving_begins_anew() -> None:
    record = SamplingRecord()
    record.add(SampledBy(20, 20, 50.0, 50.0))
    record.forgive()

    assert not record.why_not_sampled([record])
    assert record.num_left_out == 20
