"""What the source offers whom."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2swarm.weights.transfer.seeder import ChunkOffer, Seeder, SeederSettings
from protocols.errors import LocalProtocolError
from protocols.ids import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SETTINGS = SeederSettings()


def new_dealer(num_chunks: int) -> Seeder:
    return Seeder(num_chunks=num_chunks, rng=random.Random(0))


def offered(offers: Sequence[ChunkOffer], peer: PeerId | None = None) -> list[int]:
    return [i for offer in offers if peer in (None, offer.peer) for i in offer.indices]


def fetch(dealer: Seeder, peer: PeerId, index: int, now_s: float) -> list[ChunkOffer]:
    """Let a peer ask for a chunk and get it."""
    return [
        *dealer.asked(peer, index, now_s),
        *dealer.sent(peer, index, now_s),
        *dealer.held(peer, [index], now_s),
    ]


def test_no_chunk_is_offered_to_two_peers_before_all_are_dealt() -> None:
    dealer = new_dealer(30)
    offers = [o for peer in (A, B, C) for o in dealer.joined(peer, [], weight=1, now_s=0)]
    told = Counter(offered(offers))
    for step in range(20):
        for offer in list(offers):
            offers.remove(offer)
            for index in offer.indices:
                more = fetch(dealer, offer.peer, index, step / 10)
                told.update(offered(more))
                offers += more
        if len(told) == 30:
            break
    assert len(told) == 30
    assert set(told.values()) == {1}


def test_no_peer_has_more_than_three_offers_that_it_has_not_asked_for() -> None:
    dealer = new_dealer(30)
    first = offered(dealer.joined(A, [], weight=1, now_s=0))
    assert len(first) == SETTINGS.max_unasked
    assert len(offered(dealer.asked(A, first[0], 0))) == 1


def test_a_slow_source_has_few_chunks_on_offer_and_a_quick_one_as_many_as_it_can_send() -> None:
    peers = [PeerId(f"p{i}") for i in range(40)]
    dealer = new_dealer(2000)
    waiting = [o for p in peers for o in dealer.joined(p, [], weight=1, now_s=0)]
    assert len(offered(waiting)) == SETTINGS.min_in_hand

    def in_hand(waiting: list[ChunkOffer], chunks_per_s: float) -> int:
        queue = [(o.peer, i) for o in waiting for i in o.indices]
        for step in range(200):
            peer, index = queue.pop(0)
            more = fetch(dealer, peer, index, step / chunks_per_s)
            queue += [(o.peer, i) for o in more for i in o.indices]
        return len(queue)

    assert 60 <= in_hand(waiting, 40.0) <= 100  # two seconds' worth


def test_who_spreads_what_it_is_dealt_is_dealt_more() -> None:
    dealer = new_dealer(400)
    queue = [
        (o.peer, i) for p in (A, B) for o in dealer.joined(p, [], weight=1, now_s=0)
        for i in o.indices
    ]  # fmt: skip
    dealer.joined(C, range(1), weight=1, now_s=0)
    got: Counter[PeerId] = Counter()
    for step in range(100):
        peer, index = queue.pop(0)
        got[peer] += 1
        more = fetch(dealer, peer, index, step / 10)
        if peer == A:  # passes it on at once; B keeps all to itself
            more += dealer.held(C, [index], step / 10)
        queue += [(o.peer, i) for o in more for i in o.indices if o.peer in (A, B)]
    assert got[A] > 2 * got[B]


def test_who_uploads_faster_is_dealt_more_from_the_start() -> None:
    dealer = new_dealer(100)
    dealer.joined(A, [], weight=1, now_s=0)
    dealer.joined(B, [], weight=100, now_s=0)
    assert dealer._burden(B) < dealer._burden(A)


def test_a_peer_whose_upload_is_unknown_counts_as_the_median_whoever_came_first() -> None:
    dealer = new_dealer(100)
    dealer.joined(A, [], weight=None, now_s=0)
    dealer.joined(B, [], weight=3e6, now_s=0)
    dealer._peers[A].num_unspread = dealer._peers[B].num_unspread = 1
    assert dealer._burden(A) == dealer._burden(B)
    dealer.joined(C, [], weight=9e6, now_s=0)
    assert dealer._burden(A) < dealer._burden(B)
    dealer.left(C, 0)
    assert dealer._burden(A) == dealer._burden(B)


def test_what_a_peer_that_leaves_was_dealt_is_dealt_to_another_at_once() -> None:
    dealer = new_dealer(4)
    mine = offered(dealer.joined(A, [], weight=1, now_s=0))
    others = offered(dealer.joined(B, [], weight=1, now_s=0))
    for index in others:
        fetch(dealer, B, index, 0)
    again = offered(dealer.left(A, 0), B)
    assert set(mine) & set(again)


def test_peers_that_have_everything_count_as_holders_after_they_have_left() -> None:
    dealer = new_dealer(8)
    first = offered(dealer.joined(C, [], weight=1, now_s=0))
    for peer in (A, B):
        dealer.joined(peer, range(8), weight=1, now_s=0)
    dealer.left(A, 0)
    dealer.left(B, 0)
    assert [offered(dealer.asked(C, index, 0)) for index in first] == [[], [], []]


def test_a_chunk_that_does_not_spread_is_dealt_to_another() -> None:
    dealer = new_dealer(3)
    indices = offered(dealer.joined(A, [], weight=1, now_s=0))
    for index in indices:
        fetch(dealer, A, index, 0)
    assert dealer.joined(B, [], weight=1, now_s=0) == []
    assert offered(dealer.deadline_passed(SETTINGS.min_lag_s / 2), B) == []
    assert sorted(offered(dealer.deadline_passed(SETTINGS.min_stall_s), B)) == sorted(indices)


def test_a_silent_peer_does_not_use_up_what_may_be_on_offer() -> None:
    dealer = new_dealer(50)
    for name in "abcdefgh":
        dealer.joined(PeerId(name), [], weight=1, now_s=0)
    # Two have all that may be on offer, and say nothing.
    offers = dealer.deadline_passed(SETTINGS.max_wait_s)
    assert offered(offers, A) == offered(offers, B) == []
    assert len(offered(offers)) == SETTINGS.min_in_hand


def test_a_silent_peer_that_speaks_again_is_dealt_to_again() -> None:
    dealer = new_dealer(50)
    indices = offered(dealer.joined(A, [], weight=1, now_s=0))
    dealer.joined(B, [], weight=1, now_s=0)
    dealer.deadline_passed(SETTINGS.max_wait_s)
    assert offered(fetch(dealer, A, indices[0], SETTINGS.max_wait_s + 1), A)


def test_the_source_helps_when_peers_pass_nothing_on() -> None:
    dealer = new_dealer(3)
    for index in offered(dealer.joined(A, [], weight=1, now_s=0)):
        fetch(dealer, A, index, 0)
    helped = len(offered(dealer.joined(B, [], weight=1, now_s=0)))
    now_s = 0.0
    while not helped and now_s < 60:
        now_s += SETTINGS.look_s
        helped = len(offered(dealer.deadline_passed(now_s), B))
    assert helped


def test_the_source_does_not_help_peers_that_pass_on_quickly() -> None:
    dealer = new_dealer(200)
    queue = offered(dealer.joined(A, [], weight=1, now_s=0))
    now_s, num_offered = 0.0, 0
    dealer.joined(B, [], weight=1e-9, now_s=0)
    while queue:
        now_s += 0.01
        index = queue.pop(0)
        more = [*fetch(dealer, A, index, now_s), *dealer.held(B, [index], now_s)]
        queue += offered(more, A)
        num_offered += len(offered(more, B))
    assert num_offered <= SETTINGS.max_unasked


def test_what_was_not_offered_may_not_be_asked_for() -> None:
    dealer = new_dealer(30)
    indices = offered(dealer.joined(A, [], weight=1, now_s=0))
    assert {i for i in range(30) if dealer.is_offered(A, i)} == set(indices)
    assert not dealer.is_offered(B, indices[0])


def test_what_is_held_by_two_peers_already_is_not_dealt() -> None:
    dealer = new_dealer(10)
    first = offered(dealer.joined(C, [], weight=1, now_s=0))
    for peer in (A, B):
        dealer.joined(peer, range(8), weight=1, now_s=0)
    more = [i for index in first for i in offered(fetch(dealer, C, index, 0), C)]
    assert set(more) <= {8, 9}


def test_the_next_chunk_goes_to_who_has_fewest_to_pass_on() -> None:
    dealer = new_dealer(30)
    mine = offered(dealer.joined(A, [], weight=1, now_s=0))
    others = offered(dealer.joined(B, [], weight=1, now_s=0))
    dealer.joined(C, mine, weight=1, now_s=0)
    # What A was dealt has spread; B has three to pass on, and a turn free as well.
    assert offered(dealer.asked(B, others[0], 0)) == []
    assert offered(dealer.held(A, mine, 0))
    assert dealer._peers[B].num_unspread == 3


def test_joining_twice_is_our_own_mistake() -> None:
    dealer = new_dealer(1)
    dealer.joined(A, [], weight=1, now_s=0)
    with pytest.raises(LocalProtocolError):
        dealer.joined(A, [], weight=1, now_s=0)


events = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "ask", "hold", "claim", "wait"]),
        st.sampled_from([A, B, C]),
        st.integers(0, 11),
    ),
    max_size=120,
)


@settings(max_examples=200, deadline=None)
@given(events)
def test_whatever_peers_say_a_peer_that_asks_for_all_it_is_offered_gets_everything(
    history: list[tuple[str, PeerId, int]],
) -> None:
    """Liars, leavers, hoarders: one honest peer among them is always served in the end."""
    dealer = new_dealer(12)
    me = PeerId("me")
    told: dict[PeerId, set[int]] = {}
    mine: set[int] = set()
    now_s = 0.0

    def hear(offers: Sequence[ChunkOffer]) -> None:
        for offer in offers:
            if offer.peer == me:
                mine.update(offer.indices)
            elif offer.peer in told:
                told[offer.peer].update(offer.indices)

    hear(dealer.joined(me, [], weight=1, now_s=0))
    for what, peer, index in history:
        now_s += 0.1
        if what == "join" and peer not in told:
            told[peer] = set()
            hear(dealer.joined(peer, [], weight=index + 1, now_s=now_s))
        elif what == "leave":
            told.pop(peer, None)
            hear(dealer.left(peer, now_s))
        elif what == "ask" and told.get(peer):
            hear(dealer.asked(peer, min(told[peer]), now_s))
        elif what == "hold" and told.get(peer):
            hear(dealer.held(peer, [min(told[peer])], now_s))
        elif what == "claim":
            hear(dealer.held(peer, range(index), now_s))
        elif what == "wait":
            now_s += index
            hear(dealer.deadline_passed(now_s))
    have: set[int] = set()
    for _ in range(400):
        now_s += SETTINGS.look_s
        hear(dealer.deadline_passed(now_s))
        for index in sorted(mine - have):
            have.add(index)
            hear(fetch(dealer, me, index, now_s))
    assert have == set(range(12))
