"""What strangers do wrong is logged, but can't fill a log."""

import contextlib

import structlog
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from echo2swarm.network.base import PeerInfo, ServeLimits, Stream, call
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.throttle import Throttle
from protocols.errors import MalformedMessageError
from tests.contracts.network_worlds import key_of
from tests.fakes.network.memory import MemoryHub


def test_a_burst_is_admitted_and_then_what_time_allows() -> None:
    throttle = Throttle(burst=2, refill_per_s=0.5)

    assert [throttle.admit(0.0) for _ in range(4)] == [0, 0, None, None]
    assert throttle.admit(1.9) is None
    assert throttle.admit(2.0) == 3, "those that were held back are counted"
    assert throttle.admit(100.0) == 0


@given(
    gaps_s=st.lists(st.floats(0, 10), max_size=200),
    burst=st.integers(1, 5),
    refill_per_s=st.floats(0.01, 2),
)
def test_never_more_than_the_burst_and_the_refill(
    gaps_s: list[float], burst: int, refill_per_s: float
) -> None:
    throttle = Throttle(burst=burst, refill_per_s=refill_per_s)
    now_s, num_admitted, num_told = 0.0, 0, 0
    for gap_s in gaps_s:
        now_s += gap_s
        held_back = throttle.admit(now_s)
        if held_back is not None:
            num_admitted += 1
            num_told += held_back

        assert num_admitted <= burst + now_s * refill_per_s + 1e-6
        assert num_told + num_admitted <= len(gaps_s)


async def test_a_peer_that_sends_garbage_for_ever_writes_few_lines(
    autojump_clock: MockClock,
) -> None:
    async def refuse(stream: Stream) -> None:
        await stream.receive()
        raise MalformedMessageError("garbage")

    hub = MemoryHub(0)
    with structlog.testing.capture_logs() as logged:
        async with hub.network(key_of(1), address="/a") as server, hub.network(key_of(2)) as peer:
            server.serve("/test/1", refuse, ServeLimits(max_frame_bytes=100))
            await peer.connect(PeerInfo(peer=server.peer, addresses=("/a",)))
            for _ in range(300):
                with contextlib.suppress(NetworkError):  # each ends in a reset
                    await call(peer, server.peer, "/test/1", b"x", max_reply_bytes=9, timeout_s=5)

    lines = [entry for entry in logged if entry["event"] == "stream.rejected"]
    assert 20 <= len(lines) <= 100
