"""Who waits for what, told when nothing moves, and not too often."""

import re
from dataclasses import replace

import pytest

from echo2swarm.system.rates import LearnerPhase
from learner.status.watchdog import NodeFacts, StallFacts, Watchdog

NODE = NodeFacts(name="ada", is_wanted=True, why="active", applied_version=3, num_in_flight=0)
FACTS = StallFacts(
    phase=LearnerPhase.WAITING,
    step=3,
    newest_version=3,
    num_accepted=10,
    num_ready=1,
    num_groups_wanted=4,
    num_open=3,
    nodes=(NODE,),
)


def reports(watchdog: Watchdog, facts: StallFacts, *, until_s: int, begin_s: int = 0) -> list[int]:
    return [s for s in range(begin_s, until_s) if watchdog.look(facts, float(s)) is not None]


def test_a_standstill_is_told_at_growing_intervals() -> None:
    assert reports(Watchdog(10.0), FACTS, until_s=100) == [10, 20, 40, 80]


def test_whatever_moves_ends_it() -> None:
    watchdog = Watchdog(10.0)
    assert reports(watchdog, FACTS, until_s=15) == [10]
    assert watchdog.report

    moved = replace(FACTS, num_accepted=11)
    assert reports(watchdog, moved, begin_s=15, until_s=40) == [25, 35]
    watchdog.look(FACTS, 40.0)
    assert watchdog.report == ""


def test_a_run_that_is_over_does_not_stall() -> None:
    assert reports(Watchdog(10.0), replace(FACTS, phase=LearnerPhase.FINISHED), until_s=100) == []


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (replace(FACTS, nodes=()), "no node is connected"),
        (
            replace(FACTS, nodes=(replace(NODE, is_wanted=False, why="too dear"),)),
            r"none is to work \(too dear\)",
        ),
        (
            replace(FACTS, nodes=(replace(NODE, num_in_flight=8),)),
            r"hand nothing in: ada \(8 rollouts, at version 3\)",
        ),
        (
            replace(FACTS, nodes=(replace(NODE, applied_version=None),)),
            r"have not got version 3 yet: ada \(0 rollouts, at version none\)",
        ),
        (FACTS, "have no lease: ada"),
        (
            replace(FACTS, nodes=(replace(NODE, scorer_wait="it waits 10 s"),)),
            r"3 open; these wait for the scorer: ada \(it waits 10 s\)$",
        ),
        (
            replace(
                FACTS,
                nodes=(NODE, replace(NODE, name="bob", scorer_wait="it waits 10 s")),
            ),
            r"have no lease: ada \([^)]*\); these wait for the scorer: bob \(it waits 10 s\)$",
        ),
        (
            replace(FACTS, nodes=(replace(NODE, trouble="sample: too long"),)),
            "have no lease: ada .*; one node says: sample: too long$",
        ),
        (
            replace(
                FACTS,
                nodes=tuple(
                    replace(NODE, trouble=text)
                    for text in ("apply: a", "sample: b", "sample: b", "apply: c", "apply: d", "")
                ),
            ),
            r"; 5 nodes say: sample: b \(2 of them\); apply: a; apply: c; and 1 more$",
        ),
        (replace(FACTS, phase=LearnerPhase.TRAINING), "the trainer is at update 4"),
        (replace(FACTS, phase=LearnerPhase.PUBLISHING), "disk is slow or full"),
        (replace(FACTS, phase=LearnerPhase.CHECKPOINTING), "a checkpoint is written"),
        (replace(FACTS, phase=LearnerPhase.STARTING), "is starting"),
    ],
)
def test_it_is_told_who_waits_for_what(facts: StallFacts, told: str) -> None:
    watchdog = Watchdog(1.0)
    watchdog.look(facts, 0.0)

    report = watchdog.look(facts, 1.0)

    assert report is not None
    assert re.search(told, report)


def test_refusals_since_then_are_told_with_their_reasons() -> None:
    watchdog = Watchdog(10.0)
    watchdog.look(replace(FACTS, refusals=(("stale", 5),)), 0.0)

    report = watchdog.look(replace(FACTS, refusals=(("stale", 5), ("wrong_shape", 7))), 10.0)

    assert report is not None
    assert "all were refused (7 wrong_shape)" in report
