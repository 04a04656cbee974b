import sys
from pathlib import Path

import pytest

from echo2swarm.system.errors import ConfigError
from learner.status.tensorboard import TensorBoard, require_tensorboard
from tests.event_files import events_in, points_in


def test_points_have_their_step_and_time(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "board", first_step=1)
    board.write({"run/reward_mean": 0.25, "trainer/kl": 0.5}, step=1, unix_s=10.0)
    board.write({"run/reward_mean": 0.75}, step=2, unix_s=20.0)
    board.close()
    assert points_in(tmp_path / "board") == [
        (1, 10.0, {"run/reward_mean": 0.25, "trainer/kl": 0.5}),
        (2, 20.0, {"run/reward_mean": 0.75}),
    ]


def test_each_point_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, first_step=1)
    board.write({"run/reward_mean": 0.25}, step=1, unix_s=10.0)
    assert len(points_in(tmp_path)) == 1
    board.close()


def test_a_later_start_tells_which_points_are_done_again(tmp_path: Path) -> None:
    for first_step in (1, 8):
        board = TensorBoard(tmp_path, first_step=first_step)
        board.write({"run/reward_mean": 0.25}, step=first_step, unix_s=10.0)
        board.close()
    starts = [e.step for e in events_in(tmp_path) if e.HasField("session_log")]
    assert starts == [1, 8]


def test_each_file_begins_with_the_version_of_its_format(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path, first_step=1)
    board.write({"run/reward_mean": 0.25}, step=1, unix_s=10.0)
    board.close()
    assert events_in(tmp_path)[0].file_version == "brain.Event:2"


def test_after_an_error_a_new_file_takes_the_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = TensorBoard(tmp_path, first_step=1)
    board.write({"run/reward_mean": 0.25}, step=1, unix_s=10.0)
    assert board._writer is not None

    def full(_data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board._writer, "write", full)
    with pytest.raises(OSError, match="No space"):
        board.write({"run/reward_mean": 0.5}, step=2, unix_s=20.0)
    board.write({"run/reward_mean": 0.75}, step=3, unix_s=30.0)
    board.close()
    assert [step for step, _, _ in points_in(tmp_path)] == [1, 3]


def test_without_the_package_an_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_tensorboard()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.record_writer", raising=False)
    with pytest.raises(ConfigError, match='install the extra "tensorboard": '):
        require_tensorboard()
