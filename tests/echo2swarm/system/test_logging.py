"""Log lines as people and programs see them."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from echo2swarm.system.logging import TextRenderer, configure_logging, events_to, read_jsonl
from tests.echo2swarm.full_disk import full_disk

log = structlog.get_logger()


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, settings = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.configure(**settings)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_an_event_is_one_line_of_time_level_name_and_fields(stream: io.StringIO) -> None:
    configure_logging(stream=stream)

    log.info("step.done", step=3, loss=0.123456, who="a b")

    time, rest = stream.getvalue().split(" ", 1)
    assert len(time) == len("12:34:56")
    assert rest.split() == ["info", "step.done", "step=3", "loss=0.1235", "who='a", "b'"]
    assert "\x1b" not in stream.getvalue()


def test_large_numbers_are_written_out(stream: io.StringIO) -> None:
    configure_logging(stream=stream)

    log.info("calibration.done", tokens_per_s=21_196.4, took_s=0.25)

    assert "tokens_per_s=21196 took_s=0.25" in stream.getvalue()


def test_what_a_peer_sent_can_not_forge_a_line_or_steer_the_terminal(stream: io.StringIO) -> None:
    configure_logging(stream=stream)

    log.warning("peer.odd", name="x\n12:00:00 info forged", esc="\x1b[2J", inner=["\x1b\n"])
    log.warning("peer.odd", error=ValueError("\x1b[2J\nforged"))
    log.warning("odd\x1b[2Jname")

    assert stream.getvalue().count("\n") == 3
    assert "\x1b" not in stream.getvalue()


def test_levels_are_coloured_on_a_terminal_only() -> None:
    event = {"event": "a.b", "level": "error", "unix_s": 0.0}

    assert "\x1b[31m" in TextRenderer(colours=True)(None, "error", dict(event))
    assert "\x1b" not in TextRenderer(colours=False)(None, "error", dict(event))


def test_debug_events_show_only_when_verbose(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    log.debug("quiet.one")
    configure_logging(stream=stream, verbose=True)
    log.debug("loud.one")

    assert "quiet.one" not in stream.getvalue()
    assert stream.getvalue().count("loud.one") == 1


def test_who_answers_in_another_way_can_keep_to_warnings(stream: io.StringIO) -> None:
    configure_logging(stream=stream, quiet=True)
    log.info("engine.ready")
    log.warning("learner.silent")

    assert "engine.ready" not in stream.getvalue()
    assert "learner.silent" in stream.getvalue()


def test_details_show_only_when_verbose_or_a_warning_and_are_in_files_of_events(
    stream: io.StringIO, tmp_path: Path
) -> None:
    configure_logging(stream=stream, details=["lease.ended"])
    with events_to(tmp_path / "events.jsonl"):
        log.info("lease.ended", n=1)
        log.warning("lease.ended", n=2)
        log.info("run.started", n=3)
    configure_logging(stream=stream, details=["lease.ended"], verbose=True)
    log.info("lease.ended", n=4)

    shown = [line.rpartition("n=")[2] for line in stream.getvalue().splitlines()]
    assert shown == ["2", "3", "4"]
    assert [line["n"] for line in read_jsonl(tmp_path / "events.jsonl")] == [1, 2, 3]


def test_libraries_are_heard_from_warning_on_and_without_tracebacks(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    library = logging.getLogger("somelib.transport")

    library.info("chatter")
    try:
        raise ValueError("broken pipe of peer")
    except ValueError:
        library.exception("stream %d failed", 7)

    (line,) = stream.getvalue().splitlines()
    assert "stream 7 failed" in line
    assert "somelib.transport" in line
    assert "ValueError: broken pipe of peer" in line


def test_tracebacks_of_libraries_show_when_verbose(stream: io.StringIO) -> None:
    configure_logging(stream=stream, verbose=True)
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("somelib").exception("failed")

    assert "Traceback" in stream.getvalue()


def test_json_lines_carry_the_same_fields(stream: io.StringIO) -> None:
    configure_logging(stream=stream, as_json=True)

    log.info("step.done", step=3, loss=float("nan"), path=Path("x"))
    logging.getLogger("somelib").warning("slow")

    ours, theirs = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ours.pop("unix_s") > 1e9
    assert ours == {"level": "info", "event": "step.done", "step": 3, "loss": None, "path": "x"}
    assert theirs["event"] == "slow"
    assert theirs["logger"] == "somelib"


def test_events_go_to_a_file_as_well_for_the_length_of_the_context(
    stream: io.StringIO, tmp_path: Path
) -> None:
    configure_logging(stream=stream)
    path = tmp_path / "events.jsonl"

    log.info("too.early")
    with events_to(path):
        log.info("just.right", step=1)
    log.info("too.late")

    (record,) = read_jsonl(path)
    assert record["event"] == "just.right"
    assert record["step"] == 1
    assert "just.right" in stream.getvalue()


def test_a_file_of_events_that_can_not_be_written_is_told_once_and_the_program_goes_on(
    stream: io.StringIO, tmp_path: Path
) -> None:
    configure_logging(stream=stream)

    with events_to(tmp_path / "events.jsonl"), full_disk(after_bytes=10):
        log.info("one.event")
        log.info("other.event")

    assert stream.getvalue().count("events.failed") == 1
    assert "other.event" in stream.getvalue()
