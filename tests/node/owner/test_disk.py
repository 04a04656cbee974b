"""Weights of other runs: deleted by rule, never the current run's."""

import fcntl
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from node.owner.disk import MAX_IDLE_S, OldRun, bytes_in, clear_old_runs, runs_to_clear

NOW = 1.8e9


def make_run(folder: Path, name: str, *, idle_s: float) -> Path:
    weights = folder / name / "weights"
    (weights / "payloads").mkdir(parents=True)
    (weights / "payloads" / "x").write_bytes(bytes(10_000))
    used = folder / name / "used"
    used.touch()
    os.utime(used, (NOW - idle_s, NOW - idle_s))
    return weights


def test_only_what_was_idle_for_long_goes(tmp_path: Path) -> None:
    old = make_run(tmp_path, "old", idle_s=MAX_IDLE_S + 10)
    new = make_run(tmp_path, "new", idle_s=MAX_IDLE_S - 10)
    current = make_run(tmp_path, "current", idle_s=MAX_IDLE_S + 10)
    (tmp_path / "old" / "engine.log").write_text("kept")

    clear_old_runs(tmp_path, current="current", now_unix_s=NOW, has_quota=False)

    assert not old.exists()
    assert new.exists()
    assert current.exists()
    assert (tmp_path / "old" / "engine.log").exists()


def test_under_a_quota_all_others_go_but_what_another_process_uses(tmp_path: Path) -> None:
    new = make_run(tmp_path, "new", idle_s=0)
    used = make_run(tmp_path, "used", idle_s=0)
    with (used / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        clear_old_runs(tmp_path, current="current", now_unix_s=NOW, has_quota=True)

    assert not new.exists()
    assert used.exists()


def test_what_a_folder_takes_is_counted_and_one_that_is_not_there_takes_nothing(
    tmp_path: Path,
) -> None:
    make_run(tmp_path, "new", idle_s=0)

    assert 10_000 <= bytes_in(tmp_path) < 30_000
    assert bytes_in(tmp_path / "none") == 0


runs = st.builds(
    OldRun,
    run_id=st.sampled_from(["a", "b", "current"]),
    num_bytes=st.integers(0, 10),
    used_unix_s=st.floats(0, NOW),
)


@given(runs=st.lists(runs), has_quota=st.booleans())
def test_the_current_run_is_never_cleared(runs: list[OldRun], has_quota: bool) -> None:
    cleared = runs_to_clear(runs, current="current", now_unix_s=NOW, has_quota=has_quota)

    assert "current" not in cleared
