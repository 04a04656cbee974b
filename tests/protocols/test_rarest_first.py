"""Rarest first, against a model that counts anew each time."""

import random

from hypothesis import given
from hypothesis import strategies as st

from protocols.ids import PeerId
from protocols.rarest_first import RarestFirst

NUM_CHUNKS = 6
HOLDERS = [PeerId(name) for name in "abc"]

steps = st.one_of(
    st.tuples(st.sampled_from(["add", "add", "drop"]), st.sampled_from(HOLDERS), st.integers(0, 5)),
    st.tuples(st.sampled_from(["join", "leave", "count"]), st.sampled_from(HOLDERS), st.just(0)),
    st.tuples(st.sampled_from(["open", "close"]), st.just(HOLDERS[0]), st.integers(0, 5)),
)


@given(st.lists(steps, max_size=60), st.integers(0, 2**32))
def test_a_holder_is_asked_for_one_of_its_rarest_open_chunks(
    history: list[tuple[str, PeerId, int]], seed: int
) -> None:
    order = RarestFirst(num_chunks=NUM_CHUNKS, rng=random.Random(seed))
    has: dict[PeerId, set[int]] = {}
    counted: set[PeerId] = set()
    wanted: set[int] = set()
    joined = [("join", holder, 0) for holder in HOLDERS]
    opened = [("open", HOLDERS[0], index) for index in range(NUM_CHUNKS)]
    for what, holder, index in (*joined, *opened, *history):
        if what == "join" and holder not in has:
            order.add_holder(holder)
            has[holder] = set()
        elif what == "open":
            order.open(index)
            wanted.add(index)
        elif what == "close":
            order.close(index)
            wanted.discard(index)
        elif holder not in has:
            continue
        elif what == "leave":
            order.remove_holder(holder)
            del has[holder]
            counted.discard(holder)
        elif what == "count":
            order.count(holder)
            counted.add(holder)
        elif what == "add":
            order.add_chunk(holder, index)
            has[holder].add(index)
        elif what == "drop":
            order.remove_chunk(holder, index)
            has[holder].discard(index)

        for name, chunks in has.items():
            rarity = {i: sum(i in has[other] for other in counted) for i in chunks & wanted}
            rarest = {i for i, r in rarity.items() if r == min(rarity.values())}
            assert _is_one_of(order.rarest(name), rarest)


def _is_one_of(index: int | None, chunks: set[int]) -> bool:
    return index in chunks if chunks else index is None


def test_ties_are_broken_at_random() -> None:
    order = RarestFirst(num_chunks=100, rng=random.Random(1))
    order.add_holder(HOLDERS[0])
    for index in range(100):
        order.add_chunk(HOLDERS[0], index)
        order.open(index)
    assert len({order.rarest(HOLDERS[0]) for _ in range(50)}) > 20


def test_what_a_holder_that_counts_comes_to_have_is_less_rare() -> None:
    order = RarestFirst(num_chunks=2, rng=random.Random(1))
    for holder in HOLDERS:
        order.add_holder(holder)
    for index in (0, 1):
        order.open(index)
        order.add_chunk(HOLDERS[0], index)
    order.count(HOLDERS[1])
    order.add_chunk(HOLDERS[1], 0)
    assert order.rarest(HOLDERS[0]) == 1
    order.remove_holder(HOLDERS[1])
    order.count(HOLDERS[2])
    order.add_chunk(HOLDERS[2], 1)
    assert order.rarest(HOLDERS[0]) == 0
