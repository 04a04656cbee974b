from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.envelope import OVERHEAD_BYTES, Envelope, seal_message, unseal
from protocols.errors import (
    BadSignatureError,
    LocalProtocolError,
    MalformedMessageError,
    ProtocolError,
)
from protocols.reasons import Reason
from protocols.sampling import SamplingParams
from protocols.status import StatusRequest
from tests.protocols.samples import KEY, OTHER_KEY, SAMPLING

CONTEXT = b"test/1\0"
SEALED = seal_message(SAMPLING, KEY, context=CONTEXT, max_bytes=1000)


def test_what_is_sealed_unseals_to_the_same_message() -> None:
    opened = unseal(SEALED, SamplingParams, KEY.public_key(), context=CONTEXT, max_bytes=1000)

    assert opened == SAMPLING


def test_only_the_signers_key_opens_it() -> None:
    with pytest.raises(BadSignatureError):
        unseal(SEALED, SamplingParams, OTHER_KEY.public_key(), context=CONTEXT, max_bytes=1000)


def test_only_the_context_it_was_signed_under_opens_it() -> None:
    with pytest.raises(BadSignatureError):
        unseal(SEALED, SamplingParams, KEY.public_key(), context=b"other/1\0", max_bytes=1000)


def test_a_signed_message_of_another_kind_is_malformed() -> None:
    with pytest.raises(MalformedMessageError, match="StatusRequest"):
        unseal(SEALED, StatusRequest, KEY.public_key(), context=CONTEXT, max_bytes=1000)


def test_the_signature_is_checked_before_the_payload_is_parsed() -> None:
    unsigned_garbage = Envelope(b"\xc1\xc1", bytes(64))

    with pytest.raises(BadSignatureError):
        unsigned_garbage.open(SamplingParams, KEY.public_key(), context=CONTEXT)


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        unseal(data, SamplingParams, KEY.public_key(), context=CONTEXT, max_bytes=1000)


@given(st.data())
def test_a_flipped_byte_is_never_accepted(data: st.DataObject) -> None:
    wire = bytearray(SEALED)
    where = data.draw(st.integers(0, len(wire) - 1))
    wire[where] ^= data.draw(st.integers(1, 255))

    with pytest.raises(ProtocolError):
        unseal(bytes(wire), SamplingParams, KEY.public_key(), context=CONTEXT, max_bytes=1000)


def test_sealed_bytes_over_the_limit_are_refused_on_both_sides() -> None:
    with pytest.raises(MalformedMessageError) as caught:
        unseal(SEALED, SamplingParams, KEY.public_key(), context=CONTEXT, max_bytes=len(SEALED) - 1)
    assert caught.value.reason is Reason.TOO_LARGE
    with pytest.raises(LocalProtocolError):
        seal_message(SAMPLING, KEY, context=CONTEXT, max_bytes=len(SEALED) - 1)


@pytest.mark.parametrize("length", [0, 100, 70_000])
def test_an_envelope_adds_no_more_than_it_says(length: int) -> None:
    request = StatusRequest("a" * length)
    envelope = Envelope.sign(request, KEY, context=CONTEXT)

    sealed = seal_message(request, KEY, context=CONTEXT, max_bytes=200_000)

    assert len(sealed) - len(envelope.payload) <= OVERHEAD_BYTES
