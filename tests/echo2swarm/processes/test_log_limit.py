"""A log that grows without end stays within its limit, and its end is not lost."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.processes import log_limit
from echo2swarm.processes.log_limit import LOOK_S, limit_log, shorten


def test_a_log_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "scorer.log"
    path.write_bytes(b"x" * 100)
    assert not shorten(path, max_bytes=100, kept_bytes=10)
    assert path.stat().st_size == 100


def test_one_that_is_too_long_begins_anew_and_its_end_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "scorer.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100 + b"the end")
        assert shorten(path, max_bytes=100, kept_bytes=7)
        # Whoever writes goes on at the new end.
        writer.write(b"more")
        assert path.read_bytes() == b"more"
    assert (tmp_path / "scorer.log.1").read_bytes() == b"the end"


async def test_it_is_looked_at_again_and_again_even_if_it_is_gone_for_a_while(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_limit.shorten, "__kwdefaults__", {"max_bytes": 10, "kept_bytes": 5})
    path = tmp_path / "scorer.log"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limit_log, path)
        await trio.sleep(2 * LOOK_S)
        for _ in range(2):
            path.write_bytes(b"x" * 11)
            await trio.sleep(2 * LOOK_S)
            assert path.read_bytes() == b""
        nursery.cancel_scope.cancel()
