"""Evaluations on record: kept, gone on with, and apart from training."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from echo2swarm.scheduling.leases.lease_book import LeaseRecord, LeaseState, SampleKey
from echo2swarm.system.errors import StoreError
from learner.evaluation.round import EvaluationRound, HeldOutRequest, RoundPlan
from learner.ledger.evaluation_rows import ScoredSample, group_of
from learner.ledger.evaluations import Outcome
from learner.ledger.ledger import Ledger, open_ledger
from learner.ledger.schema import _TRAINING
from learner.scoring.messages import Prompt
from protocols.ids import PeerId, PolicyVersion
from protocols.packed import pack_tokens
from protocols.sampling import SamplingParams

SAMPLING = SamplingParams(0.7, 16, (2,))
V = PolicyVersion(5)
PROMPTS = [Prompt(i, pack_tokens([1, i]), "") for i in range(3)]
ANSWER = ScoredSample(
    reward=0.25, is_failed=True, num_tokens=7, is_truncated=True, peer=PeerId("alice"), text="no"
)


def opened(folder: Path) -> Any:  # noqa: ANN401 - a context manager
    return open_ledger(folder / "ledger.sqlite", run_id="run", max_staleness=2)


def leased(*, version: PolicyVersion = V) -> LeaseRecord:
    plan = RoundPlan(
        samples_per_prompt=2, sampling=SAMPLING, seed=0, lease_timeout_s=10.0, last_step=9
    )
    found = EvaluationRound(version, PROMPTS, plan)
    got = found.grant(HeldOutRequest(PeerId("alice"), "session-1", 9), max_evaluators=1, now_s=0.0)
    assert got is not None
    return got[1]


async def begin(ledger: Ledger, version: PolicyVersion = V) -> LeaseRecord:
    """Record an evaluation with one lease, of which the first sample is judged."""
    await ledger.evaluations.open(PROMPTS)
    await ledger.evaluations.started(
        version, num_prompts=3, samples_per_prompt=2, sampling=SAMPLING, now_unix_s=1.0
    )
    record = leased(version=version)
    await ledger.evaluations.granted(version, record, now_unix_s=2.0)
    await judged(ledger, record, (group_of(0), 0), version=version)
    return record


async def judged(
    ledger: Ledger, record: LeaseRecord, key: SampleKey, *, version: PolicyVersion = V
) -> None:
    await ledger.evaluations.judged(version, record.lease_id, [(key, ANSWER)], now_unix_s=3.0)


async def test_what_an_earlier_process_began_is_found_with_all_that_it_had(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        record = await begin(ledger)
    async with opened(tmp_path) as ledger:
        before = await ledger.evaluations.open(PROMPTS)

    assert before.newest_version == V
    assert not before.are_other_prompts
    left = before.unfinished
    assert left is not None
    assert left.version == V
    assert left.is_of(num_prompts=3, samples_per_prompt=2, sampling=SAMPLING)
    assert left.answers == {(group_of(0), 0): ANSWER}
    assert left.num_leases == 1
    (lease,) = left.leases
    assert (lease.lease_id, lease.peer, lease.session_id) == (
        record.lease_id,
        record.peer,
        record.session_id,
    )
    assert lease.samples == record.samples
    assert lease.state is LeaseState.RESTARTED


@pytest.mark.parametrize(
    "changed",
    [
        {"num_prompts": 4},
        {"samples_per_prompt": 3},
        {"sampling": SamplingParams(0.8, 16, (2,))},
        {"sampling": SamplingParams(0.7, 17, (2,))},
    ],
)
async def test_another_question_is_another_evaluation(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    async with opened(tmp_path) as ledger:
        await begin(ledger)
        left = (await ledger.evaluations.open(PROMPTS)).unfinished

    asked = {"num_prompts": 3, "samples_per_prompt": 2, "sampling": SAMPLING}
    assert left is not None
    assert left.is_of(**asked)
    assert not left.is_of(**{**asked, **changed})


async def test_no_sample_counts_twice(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        record = await begin(ledger)

        with pytest.raises(StoreError, match="UNIQUE"):
            await judged(ledger, record, (group_of(0), 0))


async def test_one_that_ended_is_not_gone_on_with(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await begin(ledger)
        await ledger.evaluations.ended(V, Outcome.PARTIAL, {"a": 1}, now_unix_s=9.0)
        before = await ledger.evaluations.open(PROMPTS)

    assert before.unfinished is None
    assert before.newest_version == V
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        found = db.execute("SELECT outcome, figures, ended_unix_s FROM evaluations").fetchall()
    assert found == [("partial", '{"a": 1}', 9.0)]


async def test_with_other_prompts_what_was_begun_is_forgotten_and_what_ended_stays(
    tmp_path: Path,
) -> None:
    others = [*PROMPTS[:2], Prompt(2, pack_tokens([8]), "")]
    async with opened(tmp_path) as ledger:
        await begin(ledger, PolicyVersion(0))
        await ledger.evaluations.ended(PolicyVersion(0), Outcome.COMPLETE, {}, now_unix_s=9.0)
        await begin(ledger)
        before = await ledger.evaluations.open(others)
        again = await ledger.evaluations.open(others)

    assert before.are_other_prompts
    assert before.unfinished is None
    assert before.newest_version == 0
    assert not again.are_other_prompts


async def test_one_that_is_abandoned_can_be_begun_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await begin(ledger)
        await ledger.evaluations.abandoned(V)
        assert (await ledger.evaluations.open(PROMPTS)).newest_version is None
        await begin(ledger)


async def test_evaluations_of_versions_that_a_resumed_run_has_not_reached_are_forgotten(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as ledger:
        await begin(ledger, PolicyVersion(0))
        await ledger.evaluations.ended(PolicyVersion(0), Outcome.COMPLETE, {}, now_unix_s=9.0)
        await begin(ledger)
        await ledger.resume(0, max_staleness=2, now_unix_s=10.0)
        before = await ledger.evaluations.open(PROMPTS)

    assert before.newest_version == 0
    assert before.unfinished is None


async def test_a_ledger_from_before_there_were_evaluations_gets_their_tables(
    tmp_path: Path,
) -> None:
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.executescript(f"{_TRAINING} PRAGMA user_version = 2;")
        db.execute("INSERT INTO meta VALUES ('run_id', 'run')")
    async with opened(tmp_path) as ledger:
        await begin(ledger)

    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
        assert db.execute("SELECT COUNT(*) FROM evaluation_samples").fetchone() == (1,)
