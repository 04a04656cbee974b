import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import advert, manifest, ticket
from protocols.envelope import seal_message
from protocols.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from protocols.reasons import Reason
from tests.protocols.samples import ADDRESS, KEY, OTHER_KEY, PEER, RUN, TICKET

LINE = ticket.format_ticket(TICKET, KEY)
BEFORE_EXPIRY_S = TICKET.expires_unix_s - 1


def line_around(sealed: bytes) -> str:
    """Return a ticket line around any sealed bytes."""
    data = len(sealed).to_bytes(2, "big") + sealed
    return ticket.PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_ticket_is_one_line_that_reads_back_as_written() -> None:
    assert LINE.split() == [LINE]
    assert LINE.startswith("echo2-1:")
    assert ticket.parse_ticket(LINE, now_unix_s=BEFORE_EXPIRY_S) == TICKET


def test_white_space_around_a_pasted_ticket_does_not_matter() -> None:
    assert ticket.parse_ticket(f"  {LINE}\n", now_unix_s=BEFORE_EXPIRY_S) == TICKET


def test_a_ticket_names_the_learner_by_its_key() -> None:
    assert TICKET.learner_peer == PEER
    assert TICKET.run == RUN
    assert TICKET.learner_public_key == KEY.public_key()


@pytest.mark.parametrize("length", range(len(ticket.PREFIX), len(LINE)))
def test_a_ticket_cut_short_anywhere_says_so(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=r"cut short.*copy the whole line"):
        ticket.parse_ticket(LINE[:length], now_unix_s=BEFORE_EXPIRY_S)


@pytest.mark.parametrize("text", ["", "echo2-", "echo2-2:AAAA", "hello", LINE[1:], "x" + LINE])
def test_a_text_with_another_prefix_is_no_ticket(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="starts with 'echo2-1:'"):
        ticket.parse_ticket(text, now_unix_s=BEFORE_EXPIRY_S)


def test_bytes_after_a_ticket_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes too many"):
        ticket.parse_ticket(LINE + "AAAA", now_unix_s=BEFORE_EXPIRY_S)


@pytest.mark.parametrize("extra", [" and more", "!", "\u00e9", "\n" + LINE])
def test_characters_that_no_ticket_has_are_refused(extra: str) -> None:
    with pytest.raises(RemoteProtocolError, match="characters that no ticket has"):
        ticket.parse_ticket(LINE + extra, now_unix_s=BEFORE_EXPIRY_S)


def test_a_text_far_too_long_is_refused_for_its_length() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ticket.parse_ticket(ticket.PREFIX + "A" * 10_000, now_unix_s=0)
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_ticket_holds_until_its_expiry_and_no_longer() -> None:
    assert ticket.parse_ticket(LINE, now_unix_s=TICKET.expires_unix_s - 0.001) == TICKET
    with pytest.raises(RemoteProtocolError, match="expired") as caught:
        ticket.parse_ticket(LINE, now_unix_s=TICKET.expires_unix_s)
    assert caught.value.reason is Reason.EXPIRED


def test_an_expired_ticket_says_of_which_run_and_since_when() -> None:
    with pytest.raises(RemoteProtocolError, match=rf"'{RUN}' expired 2\.0 h ago"):
        ticket.parse_ticket(LINE, now_unix_s=TICKET.expires_unix_s + 7200)


def test_a_forged_ticket_is_refused_even_when_it_has_expired() -> None:
    forged = line_around(
        seal_message(TICKET, OTHER_KEY, context=ticket.SIGNING_CONTEXT, max_bytes=ticket.MAX_BYTES)
    )

    with pytest.raises(RemoteProtocolError) as caught:
        ticket.parse_ticket(forged, now_unix_s=TICKET.expires_unix_s + 1)
    assert caught.value.reason is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("context", [manifest.SIGNING_CONTEXT, advert.SIGNING_CONTEXT])
def test_a_signature_made_for_another_purpose_makes_no_ticket(context: bytes) -> None:
    line = line_around(seal_message(TICKET, KEY, context=context, max_bytes=ticket.MAX_BYTES))

    with pytest.raises(RemoteProtocolError) as caught:
        ticket.parse_ticket(line, now_unix_s=BEFORE_EXPIRY_S)
    assert caught.value.reason is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("where", range(2, 200, 3))
def test_an_altered_ticket_is_told_to_be_damaged(where: int) -> None:
    sealed = bytearray(base64.urlsafe_b64decode(LINE[len(ticket.PREFIX) :] + "==")[2:])
    sealed[where] ^= 0x81

    with pytest.raises(RemoteProtocolError, match="the ticket is damaged; copy it again, whole"):
        ticket.parse_ticket(line_around(bytes(sealed)), now_unix_s=BEFORE_EXPIRY_S)


@given(st.data())
def test_a_ticket_with_a_flipped_byte_is_never_accepted(data: st.DataObject) -> None:
    sealed = bytearray(base64.urlsafe_b64decode(LINE[len(ticket.PREFIX) :] + "==")[2:])
    where = data.draw(st.integers(0, len(sealed) - 1))
    sealed[where] ^= data.draw(st.integers(1, 255))

    with pytest.raises(RemoteProtocolError):
        ticket.parse_ticket(line_around(bytes(sealed)), now_unix_s=BEFORE_EXPIRY_S)


@given(st.text(max_size=60), st.booleans())
def test_any_text_raises_nothing_but_a_protocol_error(text: str, with_prefix: bool) -> None:
    with suppress(ProtocolError):
        ticket.parse_ticket(ticket.PREFIX * with_prefix + text, now_unix_s=0)


@given(st.binary(max_size=120))
def test_any_bytes_in_a_line_raise_nothing_but_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        ticket.parse_ticket(line_around(data), now_unix_s=0)


def test_the_longest_lawful_ticket_can_be_read() -> None:
    longest = ticket.Ticket("r" * 64, TICKET.learner_key, (ADDRESS,) * ticket.MAX_ADDRESSES, 1)

    assert ticket.parse_ticket(ticket.format_ticket(longest, KEY), now_unix_s=0) == longest


def test_a_ticket_too_long_to_be_read_is_never_written() -> None:
    long = ticket.Ticket(RUN, TICKET.learner_key, ("a" * 256,) * ticket.MAX_ADDRESSES, 1)

    with pytest.raises(LocalProtocolError, match="limit 4096"):
        ticket.format_ticket(long, KEY)
