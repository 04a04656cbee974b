"""Measuring one link: what may be under way, what counts, what is refused."""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.codec import encode
from protocols.errors import RemoteProtocolError
from protocols.probe import (
    BLOCK_BYTES,
    FIRST_WINDOW_BYTES,
    MAX_BYTES,
    MAX_FRAME_BYTES,
    MAX_SEND_S,
    ProbeBlock,
    ProbeReceiver,
    ProbeSeen,
    ProbeSender,
    RateMeter,
)


@dataclass
class Wire:
    """A line of a given rate and delay, between a sender and a receiver."""

    bytes_per_s: float
    one_way_s: float
    sender: ProbeSender = field(default_factory=lambda: ProbeSender(0.0))
    receiver: ProbeReceiver = field(default_factory=ProbeReceiver)
    most_under_way: int = 0

    def run(self) -> float:
        """Let the sender finish; returns when."""
        now_s = free_at_s = 0.0
        under_way = 0
        arrivals: deque[tuple[float, ProbeBlock]] = deque()
        answers: deque[tuple[float, ProbeSeen]] = deque()
        while not self.sender.is_done:
            while (size := self.sender.next_block_bytes(now_s)) is not None:
                block = self.sender.block(random.Random(0).randbytes(size))
                free_at_s = max(free_at_s, now_s) + size / self.bytes_per_s
                arrivals.append((free_at_s + self.one_way_s, block))
                under_way += size
                self.most_under_way = max(self.most_under_way, under_way)
            if arrivals and (not answers or arrivals[0][0] <= answers[0][0]):
                now_s, block = arrivals.popleft()
                answer = self.receiver.received(block, now_s)
                answers.append((now_s + self.one_way_s, answer))
                under_way -= len(block.data)
            else:
                now_s, answer = answers.popleft()
                self.sender.seen(answer, now_s)
        return now_s


@pytest.mark.parametrize("mbit_per_s", [1.0, 5.0, 25.0, 100.0])
@pytest.mark.parametrize("one_way_s", [0.002, 0.04])
def test_the_rate_of_a_home_line_is_found_at_both_ends(mbit_per_s: float, one_way_s: float) -> None:
    wire = Wire(mbit_per_s * 125_000, one_way_s)
    wire.run()

    for meter in (wire.sender.meter, wire.receiver.meter):
        rate = meter.bytes_per_s()
        assert rate is not None
        assert 0.6 < rate / wire.bytes_per_s < 1.05


def test_a_slow_line_is_never_filled_for_long() -> None:
    wire = Wire(125_000.0, 0.04)

    assert wire.run() < 2 * MAX_SEND_S + FIRST_WINDOW_BYTES / 125_000 + 0.1


@given(st.floats(1e4, 1e9), st.floats(0, 0.3))
def test_a_probe_ends_within_its_bytes_on_any_line(bytes_per_s: float, one_way_s: float) -> None:
    wire = Wire(bytes_per_s, one_way_s)
    wire.run()

    assert wire.receiver.is_done
    assert wire.most_under_way <= MAX_BYTES
    for meter in (wire.sender.meter, wire.receiver.meter):
        rate = meter.bytes_per_s()
        assert rate is None or rate <= bytes_per_s * 1.05


def test_a_receiver_cannot_answer_for_what_it_does_not_have() -> None:
    sender, receiver = ProbeSender(0.0), ProbeReceiver()
    first = sender.block(b"\1" * BLOCK_BYTES)
    answer = receiver.received(first, 0.1)
    sender.block(b"\2" * BLOCK_BYTES)

    for lie in (
        ProbeSeen(2 * BLOCK_BYTES, answer.sha256),
        ProbeSeen(BLOCK_BYTES, bytes(32)),
    ):
        with pytest.raises(RemoteProtocolError, match="not about what was sent"):
            sender.seen(lie, 0.2)
    sender.seen(answer, 0.2)
    with pytest.raises(RemoteProtocolError):
        sender.seen(answer, 0.3)


def test_a_sender_cannot_go_on_for_ever() -> None:
    receiver = ProbeReceiver()
    block = ProbeBlock(bytes(BLOCK_BYTES), is_last=False)
    for _ in range(MAX_BYTES // BLOCK_BYTES):
        receiver.received(block, 0.0)

    with pytest.raises(RemoteProtocolError, match="more blocks"):
        receiver.received(block, 0.0)


def test_blocks_of_a_few_bytes_are_no_way_to_keep_a_receiver_busy() -> None:
    with pytest.raises(RemoteProtocolError, match="short block"):
        ProbeReceiver().received(ProbeBlock(b"x", is_last=False), 0.0)


def test_what_comes_after_the_last_block_is_refused() -> None:
    receiver = ProbeReceiver()
    receiver.received(ProbeBlock(b"", is_last=True), 0.0)

    with pytest.raises(RemoteProtocolError):
        receiver.received(ProbeBlock(b"x", is_last=True), 0.0)


def test_too_little_is_no_measurement() -> None:
    meter = RateMeter()
    assert meter.bytes_per_s() is None
    meter.arrived(1000, 0.0)
    meter.arrived(2000, 1.0)
    assert meter.bytes_per_s() is None


def test_the_largest_block_fits_its_frame() -> None:
    assert encode(ProbeBlock(bytes(BLOCK_BYTES), is_last=False), max_bytes=MAX_FRAME_BYTES)
