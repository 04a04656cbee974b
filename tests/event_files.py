"""Reads TensorBoard's event files, with every checksum, as its own reader does."""

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event


def events_in(folder: Path) -> list[Event]:
    return [e for path in sorted(folder.iterdir()) for e in _events(path.read_bytes())]


def _events(data: bytes) -> Iterator[Event]:
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        header, body = data[:8], data[12 : 12 + length]
        for part, crc in ((header, data[8:12]), (body, data[12 + length : 16 + length])):
            assert struct.unpack("<I", crc)[0] == _masked(part)
        yield Event.FromString(body)
        data = data[16 + length :]


def _masked(data: bytes) -> int:
    crc: int = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def points_in(folder: Path) -> list[tuple[int, float, dict[str, float]]]:
    return [
        (e.step, e.wall_time, {v.tag: round(v.simple_value, 6) for v in e.summary.value})
        for e in events_in(folder)
        if e.HasField("summary")
    ]
