"""Streams of the in-memory network: two bounded pipes whose frames take their time."""

import random
from typing import Final

import trio

from echo2swarm.network.base import Data
from echo2swarm.system.errors import NetworkError
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, short
from protocols.reasons import Reason

WINDOW_FRAMES: Final = 16
"""A writer waits when its reader is this many frames behind."""
RESEND_S: Final = 0.2
"""What a lost frame of a stream costs: the least retransmission timeout of Linux TCP."""


class Weather:
    """How long frames travel, and which are lost."""

    def __init__(self, rng: random.Random, latency_s: tuple[float, float], loss: float) -> None:
        self._rng = rng
        self._latency_s = latency_s
        self._loss = loss

    def latency_s(self) -> float:
        """Draw a one-way delay."""
        return self._rng.uniform(*self._latency_s)

    def is_lost(self) -> bool:
        """Draw whether a frame is lost."""
        return self._rng.random() < self._loss

    def reliable_latency_s(self) -> float:
        """Draw the delay of a frame that is sent again until it arrives."""
        delay_s = self.latency_s()
        while self.is_lost():
            delay_s += RESEND_S
        return delay_s


class _Pipe:
    """One direction of a stream: frames in order, each with its time of arrival."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._writer, self._reader = trio.open_memory_channel[tuple[float, bytes]](WINDOW_FRAMES)
        self._arriving: tuple[float, bytes] | None = None
        self._last_arrival_s = 0.0
        self._write_lock = trio.Lock()
        self._read_lock = trio.Lock()

    async def put(self, frame: bytes) -> None:
        async with self._write_lock:
            arrival_s = trio.current_time() + self._weather.reliable_latency_s()
            self._last_arrival_s = max(self._last_arrival_s, arrival_s)
            await self._writer.send((self._last_arrival_s, frame))

    async def get(self) -> bytes:
        async with self._read_lock:
            if self._arriving is None:
                self._arriving = await self._reader.receive()
            arrival_s, frame = self._arriving
            # A cancelled reader leaves the frame for the next one.
            await trio.sleep_until(max(arrival_s, trio.current_time()))
            self._arriving = None
            return frame

    def end(self) -> None:
        """Let the reader have what is on its way, then the end."""
        self._writer.close()

    def cut(self) -> None:
        """Lose what is on its way."""
        self._writer.close()
        self._reader.close()


class MemoryStream:
    """One end of a stream; implements :class:`echo2swarm.network.base.Stream`."""

    def __init__(
        self, peer: PeerId, incoming: _Pipe, outgoing: _Pipe, max_frame_bytes: int
    ) -> None:
        self._peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._max_frame_bytes = max_frame_bytes
        self._is_broken = False

    @property
    def peer(self) -> PeerId:
        """Who is at the other end."""
        return self._peer

    @property
    def num_arrived_bytes(self) -> int:
        """How much is here of the frame that is being received: here they arrive whole."""
        return 0

    async def send(self, *parts: Data) -> None:
        """Send one frame."""
        try:
            await self._outgoing.put(b"".join(parts))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise NetworkError(f"stream to {short(self._peer)} broke") from None

    async def receive(self) -> bytes:
        """Return the next frame."""
        try:
            frame = await self._incoming.get()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise NetworkError(f"stream from {short(self._peer)} ended") from None
        if self._is_broken:
            raise NetworkError(f"stream from {short(self._peer)} broke")
        if len(frame) > self._max_frame_bytes:
            self.reset()
            raise MalformedMessageError(
                f"frame of {len(frame)} bytes announced, limit {self._max_frame_bytes}",
                reason=Reason.TOO_LARGE,
            )
        return frame

    async def receive_view(self) -> memoryview:
        """Return the next frame."""
        return memoryview(await self.receive())

    def close(self) -> None:
        """End both directions; what was sent still arrives."""
        self._outgoing.end()
        self._incoming.cut()

    def reset(self) -> None:
        """Break both directions; what is on its way is lost."""
        self._is_broken = True
        self._outgoing.cut()
        self._incoming.cut()


def stream_pair(
    weather: Weather,
    dialler: PeerId,
    listener: PeerId,
    *,
    dialler_max_frame_bytes: int,
    listener_max_frame_bytes: int,
) -> tuple[MemoryStream, MemoryStream]:
    """Return the dialler's and the listener's end of a new stream."""
    there, back = _Pipe(weather), _Pipe(weather)
    return (
        MemoryStream(listener, back, there, dialler_max_frame_bytes),
        MemoryStream(dialler, there, back, listener_max_frame_bytes),
    )
