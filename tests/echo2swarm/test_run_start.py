"""When a run began, from what its files tell."""

from typing import Any

import pytest

from echo2swarm.report.run_reader import _LedgerFacts, _start


def started(unix_s: float) -> dict[str, Any]:
    return {"event": "run.started", "unix_s": unix_s}


@pytest.mark.parametrize(
    ("starts", "first_version_s", "expected"),
    [
        ((100.0,), 110.0, 100.0),
        # A first start with a wrong path, then one that worked.
        ((100.0, 250.0), 260.0, 250.0),
        # Resumed later.
        ((100.0, 400.0), 110.0, 100.0),
        ((100.0, 250.0, 400.0), 260.0, 250.0),
    ],
)
def test_a_run_begins_with_the_start_that_led_to_its_first_version(
    starts: tuple[float, ...], first_version_s: float, expected: float
) -> None:
    ledger = _LedgerFacts(versions=((0, 1, first_version_s),))
    events = [started(at) for at in starts]
    assert _start([{"unix_s": first_version_s + 5}], events, ledger) == expected
    assert _start([{"unix_s": first_version_s}], events, _LedgerFacts()) == expected


def test_whatever_is_told_first_will_do_where_something_is_missing() -> None:
    assert _start([{"unix_s": 7.0}], [], _LedgerFacts()) == 7.0
    assert _start([], [started(9.0), started(12.0)], _LedgerFacts()) == 9.0
    assert _start([], [{"event": "x", "unix_s": 3.0}], _LedgerFacts()) == 3.0
    assert _start([], [], _LedgerFacts()) == 0.0
