import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.report.report import figures_json, summarize_run, write_report
from echo2swarm.report.run_reader import read_run, step_record_of
from echo2swarm.report.run_record import (
    StepRecord,
    TimeSpan,
    busy_share,
    moving_mean,
    overlap_s,
    reward_gain,
)
from echo2swarm.system.errors import StoreError, UsageError
from tests.echo2swarm.sample_run import (
    DELTA_BYTES,
    NUM_STEPS,
    write_evaluations,
    write_ledger,
    write_metrics,
    write_run,
    write_status,
)

PNG_MAGIC = b"\x89PNG\r\n"
SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(
        lambda t: TimeSpan(start_s=t[0], end_s=t[0] + t[1])
    ),
    max_size=8,
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    write_run(folder)
    return folder


def test_a_report_has_text_figures_and_pictures(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    path = write_report(run_dir, out)

    assert path == out / "report.md"
    text = path.read_text()
    for name in ("reward", "staleness", "phases", "overlap", "bytes", "broadcast", "shares"):
        assert f"![{name}]({name}.png)" in text
        assert (out / f"{name}.png").read_bytes().startswith(PNG_MAGIC)
    assert msgspec.json.decode((out / "report.json").read_bytes())["run_id"] == "demo-7f3a"
    assert "## Missing" not in text


def test_prompts_that_were_left_out_are_named_once_with_the_reason(
    run_dir: Path, tmp_path: Path
) -> None:
    skipped = {"event": "prompts.skipped", "count": 1, "why": "they can't be made"}
    with (run_dir / "events.jsonl").open("a") as file:
        for which in (["rows.jsonl:60: KeyError"], ["rows.jsonl:60: KeyError"], [7], "x"):
            file.write(json.dumps({**skipped, "which": which}) + "\n")

    text = write_report(run_dir, tmp_path / "out").read_text()

    assert "## Skipped prompts" in text
    assert text.count("rows.jsonl:60: KeyError") == 1
    figures = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes())
    assert figures["skipped_prompts"] == ["rows.jsonl:60: KeyError (they can't be made)"]


def test_evaluations_are_a_curve_with_its_intervals(run_dir: Path, tmp_path: Path) -> None:
    write_evaluations(run_dir)

    text = write_report(run_dir, tmp_path / "out").read_text()

    assert "![evaluation](evaluation.png)" in text
    assert (tmp_path / "out" / "evaluation.png").read_bytes().startswith(PNG_MAGIC)
    interval = "0.750 [0.625, 0.875]"
    assert f"| 10 | {interval} | {interval} | {interval} | 48 of 64 | 30 s |" in text
    assert "mean@4 0.250 [0.125, 0.375] of version 0, 0.750 [0.625, 0.875] of version 10" in text
    assert "One evaluation found nothing" in text
    figures = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes())
    assert [point["version"] for point in figures["evaluations"]] == [0, 10]
    assert figures["evaluations"][1]["mean_at_k"] == {"value": 0.75, "low": 0.625, "high": 0.875}
    assert figures["num_evaluations_dropped"] == 1


def test_a_run_without_evaluations_has_no_curve_and_no_word_of_it(
    run_dir: Path, tmp_path: Path
) -> None:
    text = write_report(run_dir, tmp_path / "out").read_text()

    assert "valuation" not in text
    assert not (tmp_path / "out" / "evaluation.png").exists()


def test_a_ledger_from_before_there_were_evaluations_is_read(run_dir: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(run_dir / "ledger.sqlite")) as db, db:
        db.executescript("DROP TABLE evaluations; PRAGMA user_version = 2;")

    text = write_report(run_dir, tmp_path / "out").read_text()

    assert "## Missing" not in text
    assert "Counted in the ledger" in text


def test_staleness_is_counted_in_the_ledger_not_taken_from_the_status(run_dir: Path) -> None:
    figures = summarize_run(read_run(run_dir))

    assert figures["staleness"] == {"0": 2 * NUM_STEPS, "2": NUM_STEPS - 2}
    assert figures["max_staleness_trained"] == 2
    assert figures["rollouts_trained"] == 3 * NUM_STEPS - 2


def test_the_gain_compares_the_first_and_the_last_ten_steps(run_dir: Path) -> None:
    figures = summarize_run(read_run(run_dir))

    assert figures["reward_first"] == pytest.approx(0.3)
    assert figures["reward_last"] == pytest.approx(0.7)
    assert figures["reward_gain"] == pytest.approx(0.4)


def test_copies_are_what_the_learner_sent_over_what_it_published(run_dir: Path) -> None:
    figures = summarize_run(read_run(run_dir))

    assert figures["payload_bytes_published"] == 25_000_000
    assert figures["learner_copies"] == pytest.approx(1.2)
    assert figures["peer_bytes_sent"] == 20_000_000
    assert figures["learner_bytes_share"] == pytest.approx(0.6)


def test_deltas_are_counted_with_what_they_save(run_dir: Path, tmp_path: Path) -> None:
    record = read_run(run_dir)
    figures = summarize_run(record)

    assert figures["versions_with_delta"] == len(record.broadcasts) - 1
    assert figures["delta_median_bytes"] == DELTA_BYTES
    assert figures["delta_median_share"] == pytest.approx(0.02)
    assert "2.0 % of the whole" in write_report(run_dir, tmp_path / "out").read_text()


def test_a_run_without_deltas_says_that_its_versions_travelled_whole(
    run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / "events.jsonl").unlink()

    text = write_report(run_dir, tmp_path / "out").read_text()

    assert "All of them travelled whole." in text


def test_broadcast_is_timed_to_the_last_node(run_dir: Path) -> None:
    figures = summarize_run(read_run(run_dir))

    assert figures["broadcast_median_s"] == pytest.approx(2.0)
    assert figures["broadcast_worst_s"] == pytest.approx(2.0)


def test_the_share_of_training_with_generation_under_way_is_measured(run_dir: Path) -> None:
    figures = summarize_run(read_run(run_dir))

    # Training goes on from second 4 to 10 of each step; generation up to second 7 or 8.
    assert figures["busy_share"] == pytest.approx(0.6)
    assert figures["generating_while_training_share"] == pytest.approx((22 * 4 + 2 * 3) / (24 * 6))


def test_what_was_issued_and_trained_is_told_by_node_and_length(
    run_dir: Path, tmp_path: Path
) -> None:
    text = write_report(run_dir, tmp_path / "out").read_text()
    (by_node, *_) = msgspec.json.decode(figures_json(run_dir))["shares"]

    assert "| node | node-a | 96 | 70 | 70 | 100 % | 100 % |" in text
    assert "Nothing is starved." in text
    assert by_node["kinds"][0]["num_issued"] == 96


def test_names_can_not_break_the_text(run_dir: Path, tmp_path: Path) -> None:
    text = write_report(run_dir, tmp_path / "out").read_text()

    assert "| node\\|b\\<script\\> |" in text


def test_a_run_without_a_ledger_says_so_and_fills_nothing_in(tmp_path: Path) -> None:
    write_status(tmp_path)
    write_metrics(tmp_path)

    text = write_report(tmp_path, tmp_path / "out").read_text()

    assert "The ledger could not be read." in text
    assert "- ledger.sqlite: staleness, versions and leases" in text
    assert summarize_run(read_run(tmp_path))["staleness"] is None
    assert not (tmp_path / "out" / "staleness.png").exists()


def test_a_damaged_ledger_is_reported_as_missing(tmp_path: Path) -> None:
    write_status(tmp_path)
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database, for sure" * 100)

    record = read_run(tmp_path)

    assert record.staleness is None
    assert any(m.startswith("ledger.sqlite: file is not a database") for m in record.missing)


def test_a_ledger_of_another_format_is_not_guessed_at(tmp_path: Path) -> None:
    write_status(tmp_path)
    write_ledger(tmp_path)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")

    record = read_run(tmp_path)

    assert record.staleness is None
    assert any("format 99" in m for m in record.missing)


def test_a_run_that_was_killed_before_its_first_status_still_has_a_report(tmp_path: Path) -> None:
    write_ledger(tmp_path)

    text = write_report(tmp_path, tmp_path / "out").read_text()

    assert "the run is unknown" in text
    assert "The learner sent not known" in text


def test_reading_leaves_the_run_directory_as_it_was(run_dir: Path) -> None:
    before = sorted(p.name for p in run_dir.iterdir())

    read_run(run_dir)

    assert sorted(p.name for p in run_dir.iterdir()) == before


def test_the_log_of_a_ledger_that_is_still_written_to_is_read(run_dir: Path) -> None:
    with closing(sqlite3.connect(run_dir / "ledger.sqlite")) as db:
        with db:
            db.execute("DELETE FROM versions WHERE version > 9")

        assert len(read_run(run_dir).broadcasts) == 10


def test_an_empty_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing to report on"):
        write_report(tmp_path, tmp_path / "out")


def test_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run directory"):
        write_report(tmp_path / "none", tmp_path / "out")


def test_a_step_done_again_after_a_crash_counts_once_as_it_was_last(tmp_path: Path) -> None:
    write_status(tmp_path)
    write_metrics(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"unix_s": 1700000500, "step": 24, "reward_mean": 0.9}\n')

    steps = read_run(tmp_path).steps

    assert [s.step for s in steps] == list(range(1, NUM_STEPS + 1))
    assert steps[-1].reward_mean == 0.9


def test_metrics_that_are_not_of_a_step_are_no_step() -> None:
    assert step_record_of({"unix_s": 1.0, "event": "heartbeat"}) is None


def test_the_first_and_the_last_ten_or_halves_are_compared() -> None:
    assert reward_gain([0.0] * 10 + [9.0] * 5 + [1.0] * 10) == (0.0, 1.0)
    assert reward_gain([0.0, 0.5, 1.0]) == (0.0, 1.0)
    assert reward_gain([1.0]) is None


def test_a_moving_mean_starts_with_what_there_is() -> None:
    assert moving_mean([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]


def test_the_busy_share_leaves_the_start_out() -> None:
    def step(number: int, end_s: float, train_s: float) -> StepRecord:
        return StepRecord(
            step=number,
            end_s=end_s,
            reward_mean=None,
            wait_s=0,
            train_s=train_s,
            write_s=0,
            publish_s=0,
        )

    assert busy_share([step(1, 100, 1), step(2, 110, 5), step(3, 120, 5)]) == 0.5
    assert busy_share([step(1, 100, 1)]) is None


@given(SPANS, SPANS)
def test_overlap_is_symmetric_and_counts_every_second_once(
    spans: list[TimeSpan], others: list[TimeSpan]
) -> None:
    def seconds(them: list[TimeSpan]) -> set[int]:
        return {s for span in them for s in range(int(span.start_s), int(span.end_s))}

    assert overlap_s(spans, others) == len(seconds(spans) & seconds(others))
    assert overlap_s(spans, others) == overlap_s(others, spans)
