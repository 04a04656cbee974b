"""Memory for frames that are announced and do not come."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.bulk.socket import FIRST_ROOM_BYTES, GROWTH, Filling

MB = 1024 * 1024


def put(target: Filling, data: bytes) -> None:
    while data:
        room = target.room()
        part = data[: len(room)]
        room[: len(part)] = part
        target.num_bytes += len(part)
        data = data[len(part) :]


def test_a_frame_that_is_only_announced_takes_up_little_memory() -> None:
    tracemalloc.start()
    try:
        announced = [Filling(16 * MB) for _ in range(8)]
        for each in announced:
            put(each, bytes(100))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes < len(announced) * 2 * FIRST_ROOM_BYTES


@given(st.lists(st.integers(1, 700_000), max_size=12))
def test_a_frame_takes_up_memory_with_what_has_arrived_of_it(lengths: list[int]) -> None:
    target = Filling(16 * MB)

    for number, length in enumerate(lengths):
        put(target, bytes([number]) * min(length, target.missing_bytes))
        assert target.held_bytes <= max(FIRST_ROOM_BYTES, GROWTH * target.num_bytes)

    whole = b"".join(bytes([number]) * length for number, length in enumerate(lengths))
    assert bytes(target.view) == whole[: target.size_bytes]


def test_a_whole_frame_has_just_its_own_memory() -> None:
    target = Filling(MB + 1)

    put(target, bytes(MB + 1))

    assert (target.missing_bytes, target.held_bytes, len(target.view)) == (0, MB + 1, MB + 1)
