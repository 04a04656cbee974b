"""What a holder lets a downloader do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.chunk_upload import (
    EndTurn,
    LookUp,
    NoteHeld,
    SendChunk,
    SendHashes,
    SendRefusal,
    UploadSession,
)
from protocols.chunks import (
    MAX_OUTSTANDING,
    DownloadDone,
    Held,
    OpenPayload,
    Request,
    WantChunk,
    WantHashes,
)
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.reasons import Reason

ROOT = bytes(32)


def open_session(*, num_chunks: int = 4, held: frozenset[int] = frozenset({0, 2})) -> UploadSession:
    session = UploadSession()
    assert session.request_received(OpenPayload(ROOT, b"\x01")) == LookUp(ROOT, b"\x01")
    session.found(num_chunks=num_chunks, holds=held.__contains__)
    return session


def test_what_is_held_is_sent_and_what_is_not_is_refused() -> None:
    session = open_session()
    assert session.request_received(WantHashes()) == SendHashes()
    assert session.request_received(WantChunk(2)) == SendChunk(2)
    assert session.request_received(WantChunk(1)) == SendRefusal(Reason.UNKNOWN_CHUNK, 1)


def test_an_unknown_payload_is_refused_and_nothing_more_is_answered() -> None:
    session = UploadSession()
    session.request_received(OpenPayload(ROOT))
    assert session.not_found() == SendRefusal(Reason.UNKNOWN_PAYLOAD)
    with pytest.raises(RemoteProtocolError):
        session.request_received(WantHashes())


@pytest.mark.parametrize("request_", [WantHashes(), WantChunk(0)])
def test_asking_before_opening_breaks_the_protocol(request_: Request) -> None:
    with pytest.raises(RemoteProtocolError, match="before the stream was open"):
        UploadSession().request_received(request_)


def test_a_stream_is_about_one_payload_at_a_time() -> None:
    with pytest.raises(RemoteProtocolError, match="before the last was done"):
        open_session().request_received(OpenPayload(ROOT))


def test_after_done_another_payload_may_be_asked_for_and_nothing_of_the_last() -> None:
    session = open_session()
    for _ in range(MAX_OUTSTANDING):
        session.request_received(WantChunk(0))
    assert session.request_received(DownloadDone()) == EndTurn()
    with pytest.raises(RemoteProtocolError, match="before the stream was open"):
        session.request_received(WantChunk(0))
    assert session.request_received(OpenPayload(b"\1" * 32)) == LookUp(b"\1" * 32, b"")
    session.found(num_chunks=2, holds={1}.__contains__)
    assert session.request_received(WantChunk(0)) == SendRefusal(Reason.UNKNOWN_CHUNK, 0)
    assert session.request_received(WantChunk(1)) == SendChunk(1)


def test_a_chunk_beyond_the_last_breaks_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="chunk 4 of 4") as caught:
        open_session().request_received(WantChunk(4))
    assert caught.value.reason == Reason.UNKNOWN_CHUNK


def test_more_requests_at_once_than_allowed_break_the_protocol() -> None:
    session = open_session()
    for _ in range(MAX_OUTSTANDING):
        session.request_received(WantChunk(0))
    with pytest.raises(RemoteProtocolError, match="at once") as caught:
        session.request_received(WantChunk(0))
    assert caught.value.reason == Reason.RATE_LIMITED
    session.answered()
    session.request_received(WantChunk(0))


def test_what_a_downloader_holds_is_noted_and_takes_no_turn() -> None:
    session = open_session()
    for _ in range(MAX_OUTSTANDING + 1):
        assert session.request_received(Held((0, 3))) == NoteHeld((0, 3))
    with pytest.raises(LocalProtocolError):
        session.answered()


def test_holding_a_chunk_beyond_the_last_breaks_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="chunk 4 of 4"):
        open_session().request_received(Held((0, 4, 1)))


def test_answering_what_was_not_asked_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        open_session().answered()
    with pytest.raises(LocalProtocolError):
        open_session().not_found()


requests = st.one_of(
    st.just(OpenPayload(ROOT)),
    st.just(WantHashes()),
    st.just(DownloadDone()),
    st.builds(WantChunk, st.integers(0, 5)),
    st.builds(Held, st.tuples(st.integers(0, 5))),
)


@given(st.lists(requests, max_size=20))
def test_no_order_of_requests_gets_what_is_not_held(asked: list[Request]) -> None:
    session = UploadSession()
    for request in asked:
        try:
            effect = session.request_received(request)
        except RemoteProtocolError:
            return
        if isinstance(effect, LookUp):
            session.found(num_chunks=4, holds={0, 2}.__contains__)
        elif not isinstance(effect, NoteHeld | EndTurn):
            session.answered()
        if isinstance(effect, SendChunk):
            assert effect.index in {0, 2}
