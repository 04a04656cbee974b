"""When leases pause since the verifier fails on everything."""

from learner.scoring.verifier_gate import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    NUM_FAILED,
    NUM_TRIED,
    VerifierGate,
)


def failed(gate: VerifierGate, *peers: str, now_s: float = 0.0) -> int:
    """Fail as often as closes the gate, by turns; returns how often a pause began."""
    return sum(
        gate.failed(peers[number % len(peers)], "KeyError: 'x'", now_s)
        for number in range(NUM_FAILED)
    )


def test_leases_pause_when_a_row_of_completions_failed_and_it_is_told_once() -> None:
    gate = VerifierGate()

    assert failed(gate, "a", "b") == 1
    assert failed(gate, "a", "b") == 0
    assert "KeyError: 'x'" in gate.why_not(1.0)
    assert "in 4 s" in gate.report(1.0)


def test_after_a_pause_a_few_leases_are_granted_and_then_none() -> None:
    gate = VerifierGate()
    failed(gate, "a")

    for _ in range(NUM_TRIED):
        assert not gate.why_not(FIRST_PAUSE_S)
        gate.granted(FIRST_PAUSE_S)

    assert gate.why_not(FIRST_PAUSE_S)
    assert not gate.why_not(2 * FIRST_PAUSE_S + 0.1)


def test_pauses_grow_while_what_is_tried_fails() -> None:
    gate = VerifierGate()
    failed(gate, "a")
    now_s, pauses_s = 0.0, []
    for _ in range(10):
        began_s = now_s
        while gate.why_not(now_s):
            now_s += 1.0
        pauses_s.append(now_s - began_s)
        gate.granted(now_s)
        gate.failed("a", "no", now_s)
        gate.failed("a", "no", now_s)

    assert pauses_s[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert max(pauses_s) == LONGEST_PAUSE_S


def test_results_that_were_sampled_before_a_pause_do_not_lengthen_it() -> None:
    gate = VerifierGate()
    failed(gate, "a")
    failed(gate, "a")

    assert not gate.why_not(FIRST_PAUSE_S)


def test_the_first_reward_ends_the_pause() -> None:
    gate = VerifierGate()
    failed(gate, "a")

    assert gate.scored("a", 1.0)
    assert not gate.is_closed
    assert not gate.why_not(1.0)
    assert not gate.report(1.0)
    assert not gate.scored("a", 1.0)


def test_one_node_whose_completions_fail_stops_nobody() -> None:
    gate = VerifierGate()
    gate.scored("honest", 0.0)

    assert failed(gate, "hostile", "hostile-2", now_s=1.0) == 0
    assert not gate.why_not(1.0)


def test_who_has_left_does_not_keep_leases_going() -> None:
    gate = VerifierGate()
    gate.scored("gone", 0.0)

    assert failed(gate, "a", now_s=1000.0) == 1


def test_while_the_verifier_works_nothing_is_told() -> None:
    gate = VerifierGate()
    for number in range(1000):
        gate.failed("a", "no", float(number))
        if number % 20 == 0:
            gate.scored("a", float(number))

    assert not gate.is_closed
    assert not gate.report(1000.0)
