import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.text.format import (
    bar,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    printable,
    rod,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (269_060_000, "269 MB"), (3.2e15, "3200 TB")],
)
def test_bytes_have_three_digits_and_a_unit(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
        (-1.0, "0 ms"),
        (0.0123, "12 ms"),
        (0.9996, "1.00 s"),
        (8.1, "8.10 s"),
        (12.34, "12.3 s"),
        (33.6, "34 s"),
        (600, "10 min"),
        (7200, "2.0 h"),
        (200_000, "2.3 d"),
    ],
)
def test_times_have_a_unit_that_fits(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(None, "-"), (math.nan, "-"), (0.0, "0"), (0.04, "0.04"), (1234.5, "1234")]
)
def test_rates_are_short(rate: float | None, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (99_999, "99999"), (123_456, "123k"), (999_999, "1M"), (12_345_678, "12.3M")],
)
def test_counts_are_exact_until_they_get_long(count: int, text: str) -> None:
    assert format_count(count) == text


@given(st.floats(-1, 2), st.integers(1, 60), st.booleans())
def test_a_bar_is_as_wide_as_asked_for(share: float, width: int, ascii_only: bool) -> None:
    assert len(bar(share, width=width, ascii_only=ascii_only)) == width


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 60), st.booleans())
def test_anything_above_nothing_leaves_a_mark(share: float, width: int, ascii_only: bool) -> None:
    assert 1 <= len(rod(share, width=width, ascii_only=ascii_only)) <= width


def test_nothing_leaves_no_mark() -> None:
    assert rod(0.0, width=10) == ""


@given(st.text(), st.integers(4, 50))
def test_what_is_shown_of_others_is_one_line_of_harmless_text(text: str, max_chars: int) -> None:
    shown = printable(text, max_chars=max_chars)

    assert len(shown) <= max_chars
    assert shown.isprintable()


def test_control_codes_do_not_reach_the_terminal() -> None:
    assert printable("\x1b[31mred\r\nnext") == "[31mred next"
