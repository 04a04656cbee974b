"""Files of JSON lines."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import StoreError
from echo2swarm.system.jsonl import JsonLines, aside, read_jsonl
from tests.echo2swarm.full_disk import full_disk

Records = st.lists(st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text()))


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jsonlines") / "records.jsonl"


@given(first=Records, second=Records)
def test_what_was_written_is_read_back_across_a_restart(
    file: Path, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    file.unlink(missing_ok=True)
    for records in (first, second):
        with JsonLines(file) as lines:
            for record in records:
                lines.write(record)

    assert list(read_jsonl(file)) == first + second


@given(records=Records.filter(bool), data=st.data())
def test_a_line_cut_off_by_a_crash_is_left_out_and_then_overwritten(
    file: Path, records: list[dict[str, Any]], data: st.DataObject
) -> None:
    file.unlink(missing_ok=True)
    with JsonLines(file) as lines:
        for record in records:
            lines.write(record)
    num_cut = data.draw(st.integers(1, len(JsonLines.encode(records[-1]))))
    os.truncate(file, file.stat().st_size - num_cut)

    assert list(read_jsonl(file)) == records[:-1]

    with JsonLines(file) as lines:
        lines.write({"after": 1})
    assert list(read_jsonl(file)) == [*records[:-1], {"after": 1}]


def test_a_torn_line_longer_than_a_block_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b'{"a":1}\n{"b":"' + b"x" * 200_000)

    with JsonLines(path):
        pass

    assert path.read_bytes() == b'{"a":1}\n'


def test_a_whole_line_that_is_no_object_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b'{"a":1}\n[2]\n')

    with pytest.raises(StoreError, match="f, line 2: not a JSON object"):
        list(read_jsonl(path))


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing"):
        list(read_jsonl(tmp_path / "nothing"))


def test_numbers_that_json_does_not_have_become_null_and_unknown_types_text(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with JsonLines(path) as lines:
        lines.write({"loss": float("nan"), "best": float("inf"), "path": Path("x")})

    assert list(read_jsonl(path)) == [{"loss": None, "best": None, "path": "x"}]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with JsonLines(path) as lines:
        lines.write({"a": 1})
        with full_disk(after_bytes=100), pytest.raises(OSError, match="too large") as caught:
            lines.write({"b": "x" * 1000})

    assert caught.value.filename == str(path)
    assert path.read_bytes() == b'{"a":1}\n'


def test_a_file_that_becomes_too_long_is_put_aside_in_the_place_of_the_one_before(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.jsonl"
    with JsonLines(path, max_bytes=100) as lines:
        for i in range(50):
            lines.write({"number": i})

    older, newer = list(read_jsonl(aside(path))), list(read_jsonl(path))
    assert [r["number"] for r in older + newer][-1] == 49
    assert older[-1]["number"] + 1 == newer[0]["number"]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 200
