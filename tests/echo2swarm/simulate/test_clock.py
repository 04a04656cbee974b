"""Virtual time."""

import math

import pytest

from echo2swarm.simulate.clock import EventClock


def test_events_happen_in_order_of_time_and_then_of_adding() -> None:
    engine = EventClock()
    seen: list[tuple[float, str]] = []

    def note(name: str) -> None:
        seen.append((engine.now_s, name))

    engine.at(2.0, note, "late")
    engine.at(1.0, note, "first")
    engine.at(1.0, note, "second")
    engine.run()

    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_time_never_goes_back() -> None:
    engine = EventClock()
    seen: list[float] = []
    engine.at(5.0, lambda: engine.at(1.0, lambda: seen.append(engine.now_s)))
    engine.run()

    assert seen == [5.0]


def test_nothing_happens_after_it_is_stopped() -> None:
    engine = EventClock()
    seen: list[str] = []
    engine.after(1.0, engine.stop)
    engine.after(2.0, seen.append, "late")
    engine.run()

    assert not seen


@pytest.mark.parametrize("when_s", [math.nan, math.inf])
def test_what_is_no_time_is_refused(when_s: float) -> None:
    with pytest.raises(ValueError, match="is no time"):
        EventClock().at(when_s, lambda: None)
