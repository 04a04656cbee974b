from pathlib import Path

from learner.demo.follow import LineFollower


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_lines_are_given_once_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LineFollower(path)
    append(path, b"one\ntwo\n")
    first = follower.new_text()
    append(path, b"three\n")

    assert first == ["one", "two"]
    assert follower.new_text() == ["three"]
    assert follower.new_text() == []


def test_a_line_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = LineFollower(path)
    append(path, b'{"a": 1}\n{"a"')
    first = follower.new_records()
    append(path, b": 2}\n")

    assert first == [{"a": 1}]
    assert follower.new_records() == [{"a": 2}]


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    assert LineFollower(tmp_path / "none").new_lines() == []


def test_other_line_ends_do_not_split_a_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, '{"a": "x\u2028y"}\n'.encode())

    assert LineFollower(path).new_records() == [{"a": "x\u2028y"}]
