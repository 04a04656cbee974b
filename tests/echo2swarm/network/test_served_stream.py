"""A request must come soon, and more of it the longer it is; a slow honest line has the time."""

import pytest
import structlog
import trio
from trio.testing import MockClock

from echo2swarm.network.base import Data, PeerInfo, ServeLimits, Stream, call
from echo2swarm.network.rpc import serve_calls
from echo2swarm.network.serving import Service
from echo2swarm.system.errors import NetworkError
from protocols.ids import PeerId
from tests.contracts.network_worlds import key_of
from tests.fakes.network.memory import MemoryHub


class Line:
    """An incoming stream whose one request comes in at a steady rate, or stops half-way."""

    peer = PeerId("peer")

    def __init__(
        self, num_bytes: int, *, bytes_per_s: float, ends_at: float = 1.0, delay_s: float = 0.0
    ) -> None:
        self._num_bytes = num_bytes
        self._bytes_per_s = bytes_per_s
        self._ends_at = ends_at
        self._begins_s = trio.current_time() + delay_s
        self.sent: list[bytes] = []

    @property
    def num_arrived_bytes(self) -> int:
        gone_s = max(0.0, trio.current_time() - self._begins_s)
        return int(min(self._num_bytes * self._ends_at, gone_s * self._bytes_per_s))

    async def receive(self) -> bytes:
        if self._ends_at < 1:
            await trio.sleep_forever()
        await trio.sleep_until(self._begins_s + self._num_bytes / self._bytes_per_s)
        return bytes(self._num_bytes)

    async def receive_view(self) -> memoryview:
        return memoryview(await self.receive())

    async def send(self, *parts: Data) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(b"".join(parts))


async def answer(stream: Stream) -> None:
    request = await stream.receive()
    await trio.sleep(9.0)
    await stream.send(b"%d" % len(request))


async def say_hello(stream: Stream) -> None:
    await stream.send(b"hello")


def silent() -> Line:
    return Line(1, bytes_per_s=1e6, ends_at=0.0)


def service() -> Service:
    return Service("/test/1", answer, ServeLimits(max_frame_bytes=1 << 24, timeout_s=10.0))


async def test_a_large_request_over_a_slow_line_is_answered(autojump_clock: MockClock) -> None:
    line = Line(16_000_000, bytes_per_s=20_000, delay_s=3.0)

    assert await service().run(line)

    assert line.sent == [b"16000000"]
    assert trio.current_time() > 800


@pytest.mark.parametrize(
    ("line", "within_s"),
    [
        ({"num_bytes": 100, "bytes_per_s": 1e6, "ends_at": 0.0}, 8.0),
        ({"num_bytes": 100, "bytes_per_s": 1e6, "ends_at": 0.9}, 8.0),
        ({"num_bytes": 16_000_000, "bytes_per_s": 1_000}, 10.0),
        ({"num_bytes": 16_000_000, "bytes_per_s": 1e6, "ends_at": 0.9}, 45.0),
    ],
    ids=["silent", "stops short", "trickles", "stops half-way"],
)
async def test_who_sends_too_little_is_given_up_on(
    autojump_clock: MockClock, line: dict[str, float], within_s: float
) -> None:
    begins_s = trio.current_time()
    with structlog.testing.capture_logs() as logged:
        assert not await service().run(Line(**line))  # type: ignore[arg-type]

    assert trio.current_time() - begins_s < within_s
    (entry,) = logged
    assert entry["event"] == "stream.timed_out"
    assert "no whole request" in entry["error"]


async def test_a_process_that_was_held_up_looks_again_before_it_gives_up(
    autojump_clock: MockClock,
) -> None:
    line = Line(100, bytes_per_s=1e6, delay_s=5.5)

    assert await service().run(line)


async def test_who_asks_more_often_than_allowed_is_refused_for_a_while(
    autojump_clock: MockClock,
) -> None:
    polled = Service("/test/1", say_hello, ServeLimits(max_frame_bytes=9, max_per_s=0.1))

    assert [await polled.run(silent()) for _ in range(5)] == [True] * 3 + [False] * 2

    await trio.sleep(10.1)
    assert [await polled.run(silent()) for _ in range(2)] == [True, False]


async def test_a_caller_waits_longer_for_the_answer_to_a_long_request(
    autojump_clock: MockClock,
) -> None:
    async def think(_peer: PeerId, _request: bytes) -> bytes:
        await trio.sleep(90)
        return b"!"

    hub = MemoryHub(0)
    async with hub.network(key_of(1), address="/a") as server, hub.network(key_of(2)) as peer:
        serve_calls(
            server,
            "/test/1",
            think,
            max_request_bytes=1 << 20,
            max_reply_bytes=9,
            timeout_s=100,
        )
        await peer.connect(PeerInfo(peer=server.peer, addresses=("/a",)))

        async def ask(num_bytes: int) -> bytes:
            return await call(
                peer, server.peer, "/test/1", bytes(num_bytes), max_reply_bytes=9, timeout_s=60
            )

        assert await ask(1 << 20) == b"!"
        with pytest.raises(NetworkError, match="within 60"):
            await ask(100)
