from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.bulk.tokens import MAX_TICKETS, MAX_TICKETS_PER_PEER, TokenBook
from protocols.bulk import TOKEN_LIFE_S
from protocols.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def token(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_token_is_good_once_and_for_whom_it_was_given_to() -> None:
    tickets: TokenBook[str] = TokenBook()
    assert tickets.issue(token(1), A, "p", now_s=0)
    assert tickets.issue(token(2), B, "q", now_s=0)

    ticket = tickets.redeem(token(1), now_s=1)

    assert ticket is not None
    assert (ticket.peer, ticket.purpose) == (A, "p")
    assert tickets.redeem(token(1), now_s=1) is None
    assert tickets.redeem(token(3), now_s=1) is None
    assert tickets.num_of(A) == 0
    assert tickets.num_of(B) == 1


@given(st.floats(0, 3 * TOKEN_LIFE_S))
def test_a_token_is_worthless_once_its_life_is_over(after_s: float) -> None:
    tickets: TokenBook[str] = TokenBook()
    tickets.issue(token(1), A, "p", now_s=100)

    assert (tickets.redeem(token(1), now_s=100 + after_s) is not None) == (
        100 + after_s < 100 + TOKEN_LIFE_S
    )
    assert len(tickets) == 0 or after_s < TOKEN_LIFE_S


def test_a_revoked_token_is_worthless() -> None:
    tickets: TokenBook[str] = TokenBook()
    tickets.issue(token(1), A, "p", now_s=0)

    tickets.revoke(token(1))
    tickets.revoke(token(2))

    assert tickets.redeem(token(1), now_s=0) is None


def test_one_peer_and_all_together_are_given_so_many_and_more_once_those_expired() -> None:
    tickets: TokenBook[str] = TokenBook()
    given = [tickets.issue(token(i), A, "p", now_s=0) for i in range(MAX_TICKETS_PER_PEER + 1)]
    assert given == [True] * MAX_TICKETS_PER_PEER + [False]

    for i in range(MAX_TICKETS_PER_PEER, MAX_TICKETS):
        assert tickets.issue(token(i), PeerId(str(i)), "p", now_s=1)
    assert not tickets.issue(token(MAX_TICKETS), A, "p", now_s=1)

    assert tickets.issue(token(MAX_TICKETS), B, "p", now_s=TOKEN_LIFE_S)
    assert tickets.num_of(A) == 0


def test_many_who_ask_for_tokens_keep_nobody_from_having_one() -> None:
    tickets: TokenBook[str] = TokenBook()
    for i in range(MAX_TICKETS):
        assert tickets.issue(token(i), PeerId(f"asker-{i // MAX_TICKETS_PER_PEER}"), "p", now_s=0)

    assert tickets.issue(token(MAX_TICKETS), A, "p", now_s=0)

    assert len(tickets) == MAX_TICKETS
    assert tickets.redeem(token(0), now_s=0) is None, "the oldest of one who holds most"
    assert tickets.redeem(token(MAX_TICKETS), now_s=0) is not None
