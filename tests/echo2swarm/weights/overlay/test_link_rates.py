"""Rates from what both ends of a link say: honest ones are found, liars gain nothing alone."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.overlay.link_rates import EXPIRE_S, MAX_BYTES_PER_S, MAX_LINKED, RateBook
from protocols.heartbeat import Dial, LinkReport
from protocols.ids import PeerId

LEARNER, A, B, C = (PeerId(f"peer-{name}") for name in ("learner", "a", "b", "c"))


@dataclass
class Teller:
    """A node that counts, and tells."""

    book: RateBook
    peer: PeerId
    session: str = "session-1"
    sent: dict[PeerId, int] = field(default_factory=dict)
    received: dict[PeerId, int] = field(default_factory=dict)
    receiving_s: float = 0.0

    def tell(self, now_s: float) -> None:
        links = [
            LinkReport(peer, self.sent.get(peer, 0), self.received.get(peer, 0), Dial.UNTRIED)
            for peer in sorted({*self.sent, *self.received})
        ]
        self.book.reported(
            self.peer, links, session_id=self.session, receiving_s=self.receiving_s, now_s=now_s
        )


def world() -> tuple[RateBook, Teller, Teller, Teller]:
    book = RateBook(LEARNER)
    tellers = Teller(book, A), Teller(book, B), Teller(book, C)
    for teller in tellers:
        teller.tell(0.0)
    return book, *tellers


def move(sender: Teller, receiver: Teller, num_bytes: int) -> None:
    sender.sent[receiver.peer] = sender.sent.get(receiver.peer, 0) + num_bytes
    receiver.received[sender.peer] = receiver.received.get(sender.peer, 0) + num_bytes
    receiver.receiving_s += 2.0


@given(st.integers(100_000, 10**9), st.floats(0, 1.9), st.floats(0, 1.9))
def test_a_long_transfer_is_measured_at_both_ends_whenever_they_report(
    rate: int, shift_a_s: float, shift_b_s: float
) -> None:
    book, a, b, _ = world()
    a.tell(shift_a_s)
    b.tell(shift_b_s)
    tells = sorted(
        [(shift_a_s + 2 * i, 0) for i in range(1, 11)]
        + [(shift_b_s + 2 * i, 1) for i in range(1, 11)]
    )
    for at_s, who in tells:
        teller, other = ((a, b), (b, a))[who]
        counter = (teller.sent, teller.received)[who]
        counter[other.peer] = int(rate * at_s)
        if who:
            b.receiving_s = at_s
        teller.tell(at_s)

    assert book.upload_bytes_per_s(A) == pytest.approx(rate, rel=0.05)
    assert book.download_bytes_per_s(B) == pytest.approx(rate, rel=0.05)
    assert book.download_bytes_per_s(A) is None
    assert book.upload_bytes_per_s(B) is None


def test_uploads_to_two_at_once_add_up_and_each_receives_its_part() -> None:
    book, a, b, c = world()
    for second in range(2, 22, 2):
        for receiver, rate in ((b, 1_000_000), (c, 2_000_000)):
            move(a, receiver, 2 * rate)
        for teller in (a, b, c):
            teller.tell(second)

    assert book.upload_bytes_per_s(A) == pytest.approx(3e6, rel=0.01)
    assert book.download_bytes_per_s(B) == pytest.approx(1e6, rel=0.01)
    assert book.download_bytes_per_s(C) == pytest.approx(2e6, rel=0.01)


def test_a_transfer_shorter_than_a_heartbeat_is_not_spread_over_all_of_it() -> None:
    book, a, b, _ = world()
    move(a, b, 4_000_000)
    b.receiving_s = 1.0
    a.tell(10.0)
    b.tell(10.0)

    assert book.upload_bytes_per_s(A) == pytest.approx(4e6, rel=0.01)
    assert book.download_bytes_per_s(B) == pytest.approx(4e6, rel=0.01)


def test_who_says_that_it_sent_a_lot_is_not_believed() -> None:
    book, a, b, _ = world()
    for second in range(2, 60, 2):
        a.sent[B] = 10**9 * second
        move(b, a, 2_000_000)
        for teller in (a, b):
            teller.tell(second)

    assert book.upload_bytes_per_s(A) is None
    assert book.download_bytes_per_s(B) is None
    assert book.upload_bytes_per_s(B) == pytest.approx(1e6, rel=0.01)


def test_who_says_that_it_received_a_lot_received_what_was_sent() -> None:
    book, a, b, _ = world()
    for second in range(2, 60, 2):
        move(a, b, 2_000_000)
        b.received[A] = 10**9 * second
        for teller in (a, b):
            teller.tell(second)

    for rate in (book.upload_bytes_per_s(A), book.download_bytes_per_s(B)):
        # One heartbeat's bytes may be taken for those of the one before.
        assert rate is not None
        assert 0.9e6 < rate <= 2e6


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**63 - 1)), max_size=40))
def test_no_claims_of_one_side_alone_ever_make_a_rate(claims: list[tuple[bool, int]]) -> None:
    book, a, b, c = world()
    for i, (is_sent, total) in enumerate(claims):
        (a.sent if is_sent else a.received)[B] = total
        for teller in (a, b, c):
            teller.tell(2.0 * i + 2)

    assert [book.upload_bytes_per_s(p) for p in (A, B, C)] == [None] * 3
    assert [book.download_bytes_per_s(p) for p in (A, B, C)] == [None] * 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1]),
            st.integers(0, 2**40),
            st.integers(0, 2**40),
            st.floats(0, 1e6),
            st.floats(0, 20),
        ),
        max_size=30,
    )
)
def test_two_that_lie_together_stay_within_what_a_link_can_carry(
    claims: list[tuple[int, int, int, float, float]],
) -> None:
    book, a, b, _ = world()
    now_s = 0.0
    for who, sent, received, receiving_s, wait_s in claims:
        teller, other = ((a, B), (b, A))[who]
        now_s += wait_s
        teller.sent[other], teller.received[other] = sent, received
        teller.receiving_s = receiving_s
        teller.tell(now_s)

    for rate in (book.upload_bytes_per_s(A), book.download_bytes_per_s(B)):
        # All of a heartbeat's time, in the shortest time that is believed.
        assert rate is None or 0 < rate <= 20 * MAX_BYTES_PER_S / 0.25


def test_what_no_line_could_carry_is_not_believed_though_both_say_it() -> None:
    book, a, b, _ = world()
    for second in (2.0, 4.0):
        move(a, b, int(2.1 * MAX_BYTES_PER_S))
        a.tell(second)
        b.tell(second)

    assert book.upload_bytes_per_s(A) is None


def test_a_counter_that_begins_anew_is_no_transfer() -> None:
    book, a, b, _ = world()
    a.sent[B], b.received[A] = 10**9, 10**9
    a.session, b.session = "session-2", "session-2"
    for second in (2.0, 4.0):
        a.tell(second)
        b.tell(second)
    a.sent[B], b.received[A] = 5, 5  # without a new session: a lie, or a bug
    a.tell(6.0)
    b.tell(6.0)

    assert book.upload_bytes_per_s(A) is None


def test_after_a_restart_of_one_side_what_flows_is_measured_again() -> None:
    book, a, b, _ = world()
    for second in range(2, 12, 2):
        move(a, b, 2_000_000)
        a.tell(second)
        b.tell(second)
    a.session, a.sent = "session-2", {}
    for second in range(100, 120, 2):
        move(a, b, 8_000_000)
        a.tell(second)
        b.tell(second)

    assert book.upload_bytes_per_s(A) == pytest.approx(4e6, rel=0.05)


def test_what_only_one_side_told_of_is_forgotten() -> None:
    book, a, b, _ = world()
    a.sent[B] = 10_000_000
    a.tell(2.0)
    b.received[A] = 10_000_000
    b.tell(2.0 + EXPIRE_S + 1)

    assert book.upload_bytes_per_s(A) is None


def test_bytes_to_and_from_strangers_count_nothing_and_cost_nothing() -> None:
    book, a, _, _ = world()
    a.sent = {PeerId(f"stranger-{i}"): 10**6 for i in range(1000)}
    a.tell(2.0)

    assert book.upload_bytes_per_s(A) is None
    assert not book._pairs
    assert not book._reporters[A].sent_bytes


def test_one_node_can_make_claims_about_so_many_peers_only() -> None:
    book, a, _, _ = world()
    others = [Teller(book, PeerId(f"other-{i}")) for i in range(2 * MAX_LINKED)]
    for other in others:
        other.tell(1.0)
    for second, other in enumerate(others):
        a.sent[other.peer] = 1000
        a.tell(2.0 + second)

    assert len(book._reporters[A].sent_bytes) == MAX_LINKED
    assert len(book._pairs) <= MAX_LINKED


def test_a_probe_is_what_is_known_before_the_first_transfer() -> None:
    book, *_ = world()
    book.probed(A, upload_bytes_per_s=3e6, download_bytes_per_s=1e7)
    book.probed(PeerId("stranger"), upload_bytes_per_s=3e6, download_bytes_per_s=1e7)

    assert (book.upload_bytes_per_s(A), book.download_bytes_per_s(A)) == (3e6, 1e7)
    assert book.upload_bytes_per_s(PeerId("stranger")) is None


def test_who_is_forgotten_leaves_no_trace() -> None:
    book, a, b, _ = world()
    move(a, b, 10_000_000)
    a.tell(2.0)
    book.forget(A)

    assert book.upload_bytes_per_s(A) is None
    assert not book._pairs
    b.tell(4.0)
    a.tell(6.0)
    assert book.upload_bytes_per_s(A) is None
