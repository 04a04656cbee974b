"""The book of leases keeps its indexes true, whatever happens."""

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.scheduling.leases.lease_book import LeaseBook, LeaseRecord, LeaseState
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
from tests.echo2swarm.scheduling.leases.samples import ALICE, BOB


def lease(
    number: int, peer: PeerId = ALICE, *, expires_at_s: float = 10.0, deadline_step: int = 2
) -> LeaseRecord:
    keys = frozenset((GroupId(number), index) for index in range(2))
    return LeaseRecord(
        lease_id=LeaseId(f"lease-{number:06d}"),
        peer=peer,
        session_id="session-1",
        min_version=PolicyVersion(0),
        deadline_step=deadline_step,
        granted_at_s=0.0,
        expires_at_s=expires_at_s,
        samples=keys,
        unsettled=set(keys),
    )


actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "settle", "end", "overdue", "revive"]),
        st.integers(0, 7),
        st.floats(0, 20),
    ),
    max_size=60,
)


@given(actions=actions)
def test_the_book_agrees_with_a_look_at_every_lease(
    actions: list[tuple[str, int, float]],
) -> None:
    book, known = LeaseBook(), dict[int, LeaseRecord]()
    now_s = 0.0
    for what, number, amount in actions:
        now_s += amount / 10
        found = known.get(number)
        is_active = found is not None and found.state is LeaseState.ACTIVE
        if what == "add" and found is None:
            peer = ALICE if number % 2 else BOB
            known[number] = lease(
                number, peer, expires_at_s=now_s + amount, deadline_step=int(amount)
            )
            book.add(known[number])
        elif what == "settle" and found is not None and found.unsettled:
            book.settle(found, min(found.unsettled), now_s)
        elif what == "end" and found is not None and is_active:
            book.end(found, LeaseState.NODE_LOST, now_s)
        elif what == "revive":
            for lost in book.lost_with(ALICE, "session-1"):
                book.revive(lost)
        elif what == "overdue":
            step = int(amount)
            expected = {
                each.lease_id: LeaseState.TIMED_OUT
                if each.expires_at_s <= now_s
                else LeaseState.TOO_OLD
                for each in known.values()
                if each.state is LeaseState.ACTIVE
                and (each.expires_at_s <= now_s or each.deadline_step < step)
            }
            over = book.overdue(now_s=now_s, next_step=step)
            assert {each.lease_id: state for each, state in over} == expected
            assert len(over) == len(expected)
            for each, state in over:
                book.end(each, state, now_s)
        active = [each for each in known.values() if each.state is LeaseState.ACTIVE]
        assert book.num_unsettled == sum(len(each.unsettled) for each in active)
        assert {each.lease_id for each in book.active} == {each.lease_id for each in active}
        for peer in (ALICE, BOB):
            of_peer = [each for each in active if each.peer == peer]
            assert {e.lease_id for e in book.of_peer(peer)} == {e.lease_id for e in of_peer}
            assert book.num_of_peer(peer) == len(of_peer)
            assert book.num_unsettled_of(peer) == sum(len(each.unsettled) for each in of_peer)
        assert book.next_expiry_s() == min((e.expires_at_s for e in active), default=None)


def test_a_result_that_comes_after_its_lease_changes_no_count_of_active_ones() -> None:
    book = LeaseBook()
    late, other = lease(1), lease(2, BOB)
    book.add(late)
    book.add(other)
    book.end(late, LeaseState.TIMED_OUT, 5.0)

    ended = book.settle(late, min(late.unsettled), 6.0)

    assert ended is None
    assert book.num_unsettled == 2
