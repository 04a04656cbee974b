"""What arrives in whatever pieces is taken whole, in order, and holds no more memory than that."""

import random

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.libp2p.receive_buffer import ReceiveBuffer

SIZES = st.one_of(st.integers(0, 50), st.integers(4000, 4200), st.just(20_000))


@given(
    st.lists(st.tuples(SIZES, SIZES, st.booleans()), max_size=20),
    st.lists(st.integers(0, 30_000), max_size=20),
)
def test_bytes_are_taken_in_the_order_in_which_they_came(
    pieces: list[tuple[int, int, bool]], takes: list[int]
) -> None:
    rng = random.Random(0)
    buffer = bytearray(b"first")
    inbox, expected, taken = ReceiveBuffer(buffer), b"first", b""
    for size, around, is_from_library in pieces:
        message = rng.randbytes(size + around)
        expected += message[around:]
        if is_from_library:
            buffer += message[around:]
        else:
            inbox.add(message, around, around + size)
        if takes:
            taken += inbox.take(min(takes.pop(), len(inbox)))
        assert len(inbox) == len(expected) - len(taken)
    taken += inbox.take(len(inbox))

    assert taken == expected
    assert not inbox


def test_small_parts_do_not_keep_large_messages() -> None:
    inbox = ReceiveBuffer(bytearray())
    for size in (1, 5000):
        inbox.add(bytes(65_519), 0, size)
        inbox.add(bytes(65_519), 0, size)

    assert sum(len(bytes(piece.obj)) for piece in inbox._pieces) <= 2 * len(inbox)


def test_what_is_cleared_is_gone() -> None:
    inbox = ReceiveBuffer(bytearray(b"here"))
    inbox.add(bytes(10_000), 0, 10_000)
    inbox.clear()

    assert len(inbox) == 0
    assert inbox.take(0) == b""
