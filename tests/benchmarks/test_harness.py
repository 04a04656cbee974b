import io
import math
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks.harness import Mark, Outcome, column, finish


def outcome_with(*marks: Mark) -> Outcome:
    return Outcome(
        name="sample",
        what="Nothing in particular.",
        columns=("case", "busy"),
        rows=(("S = 0", 0.4567), ("S = 2", 0.9)),
        marks=marks,
        figures={"runs": [1, 2]},
    )


def console() -> Console:
    return Console(width=80, file=io.StringIO(), record=True)


@pytest.mark.parametrize(
    ("mark", "met"),
    [
        (Mark(name="x", value=1.0, at_least=1.0), True),
        (Mark(name="x", value=0.99, at_least=1.0), False),
        (Mark(name="x", value=1.0, at_most=1.0), True),
        (Mark(name="x", value=1.01, at_most=1.0), False),
        (Mark(name="x", value=3.0, at_least=1.0, at_most=2.0), False),
        (Mark(name="x", value=math.nan, at_least=1.0), False),
    ],
)
def test_a_mark_is_met_within_its_bounds(mark: Mark, met: bool) -> None:
    assert mark.is_met is met


def test_a_missed_mark_is_shown_and_is_a_failure() -> None:
    screen = console()

    status = finish(outcome_with(Mark(name="gain", value=1.1, at_least=1.15)), console=screen)

    assert status == 1
    assert "MISSED  gain: 1.1 (wanted >= 1.15)" in screen.export_text()


def test_all_marks_met_is_a_success_with_figures_in_the_table() -> None:
    screen = console()

    status = finish(outcome_with(Mark(name="gain", value=1.2, at_least=1.15)), console=screen)

    text = screen.export_text()
    assert status == 0
    assert "0.457" in text
    assert "met  gain: 1.2" in text


def test_figures_are_kept_as_json_with_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "out.json"

    finish(
        outcome_with(Mark(name="gain", value=1.2, at_least=1.15)),
        json_path=path,
        console=console(),
    )

    record = msgspec.json.decode(path.read_bytes())
    assert record["figures"] == {"runs": [1, 2]}
    assert record["marks"][0]["is_met"] is True
    assert record["machine"]["num_cpus"] >= 1


def test_a_column_takes_numbers_only() -> None:
    assert column([{"a": 1}, {"a": None}, {"b": 2}, {"a": True}, {"a": 0.5}], "a") == [1.0, 0.5]
