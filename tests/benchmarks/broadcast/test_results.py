from math import inf

import pytest

from benchmarks.broadcast.cases import Case
from benchmarks.broadcast.results import CaseResult, outcome_of
from benchmarks.broadcast.swarm import Run
from benchmarks.harness import Mark, as_json

CASE = Case(name="plain", what="no delay", at_most=1.15, at_most_of_torrent=0.85, max_copies=1.25)


def _run(last_s: float, copies: float = 1.0) -> Run:
    return Run(
        last_s=last_s,
        finish_s=(last_s,) * 8,
        copies=copies,
        link_sent_bytes=(1,) * 9,
        cpu_s=(1.0,) * 9,
        max_rss_mb=(100.0,) * 9,
    )


def _marks(result: CaseResult) -> dict[str, Mark]:
    return {mark.name.removeprefix("plain: "): mark for mark in outcome_of([result]).marks}


def test_medians_are_held_to_the_marks() -> None:
    least_s = CASE.least_s
    result = CaseResult(
        case=CASE,
        runs=[_run(9 * least_s, 9), _run(1.1 * least_s, 1.2), _run(least_s)],
        torrents_s=[1.4 * least_s, 1.2 * least_s, 5 * least_s],
    )

    marks = _marks(result)

    assert marks["last peer / T*"].value == pytest.approx(1.1)
    assert marks["last peer / libtorrent's"].value == pytest.approx(1.1 / 1.4)
    assert marks["copies the learner sent"].value == pytest.approx(1.2)
    assert outcome_of([result]).is_good


def test_one_run_that_failed_spoils_the_case() -> None:
    result = CaseResult(case=CASE, runs=[_run(1.0)] * 2, failures=["peer3 died"])

    marks = _marks(result)

    assert not marks["runs that failed"].is_met
    assert marks["last peer / T*"].value == inf
    assert not marks["last peer / T*"].is_met


def test_a_case_in_which_nothing_was_measured_is_shown_and_missed() -> None:
    outcome = outcome_of([CaseResult(case=CASE, failures=["it could not start"])])

    assert not outcome.is_good
    assert b"it could not start" in as_json(outcome)


def test_without_libtorrent_nothing_is_said_about_it() -> None:
    assert "last peer / libtorrent's" not in _marks(CaseResult(case=CASE, runs=[_run(1.0)]))


def test_a_case_without_marks_must_still_complete() -> None:
    case = Case(name="nat", what="some cannot be dialled")

    assert outcome_of([CaseResult(case=case, runs=[_run(99.0)])]).is_good
    assert not outcome_of([CaseResult(case=case, failures=["no"])]).is_good
