"""What holds for every message, whatever it says."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from protocols import status
from protocols.codec import Message, decode, encode
from protocols.envelope import Envelope
from protocols.errors import LocalProtocolError, MalformedMessageError, ProtocolError
from protocols.reasons import Reason
from tests.protocols import samples
from tests.protocols.strategies import (
    as_data,
    every_message,
    instances,
    struct_fields,
    unlawful_values,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
ANY_SIZE = 2**40

kinds = pytest.mark.parametrize("kind", every_message(), ids=lambda k: k.__name__)
sampled_kinds = pytest.mark.parametrize(
    "kind", [k for k in every_message() if k is not Envelope], ids=lambda k: k.__name__
)
"""An envelope is tested with what it seals."""
property_test = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def parts_of(value: object) -> Iterator[msgspec.Struct]:
    """Yield every message inside ``value``, itself included."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from parts_of(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from parts_of(item)


SAMPLES = {
    type(part): part
    for messages in samples.MESSAGES.values()
    for message in messages
    for part in parts_of(message)
}
"""A sample of every kind of message, alone or inside another."""


@pytest.mark.parametrize("protocol", sorted(VECTORS))
def test_the_encoding_of_every_sample_is_frozen(protocol: str) -> None:
    # A change here is a change of the wire format, and needs a new protocol version.
    frozen = VECTORS[protocol]

    assert {name: data.hex() for name, data in samples.wire_bytes()[protocol].items()} == frozen


def test_every_protocol_has_frozen_encodings() -> None:
    assert sorted(VECTORS) == sorted(samples.wire_bytes())


@pytest.mark.parametrize("protocol", sorted(samples.MESSAGES))
def test_frozen_bytes_decode_to_the_sample(protocol: str) -> None:
    for message in samples.MESSAGES[protocol]:
        data = bytes.fromhex(VECTORS[protocol][type(message).__name__])

        assert decode(data, type(message), max_bytes=len(data)) == message


@sampled_kinds
def test_every_kind_of_message_has_a_sample(kind: type[Message]) -> None:
    assert kind in SAMPLES


@kinds
@property_test
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_same_message(
    kind: type[Message], data: st.DataObject
) -> None:
    message = data.draw(instances(kind))

    wire = encode(message, max_bytes=ANY_SIZE)

    assert decode(wire, kind, max_bytes=len(wire)) == message


@kinds
@property_test
@given(garbage=st.binary(max_size=200))
def test_garbage_never_raises_anything_but_a_protocol_error(
    kind: type[Message], garbage: bytes
) -> None:
    with suppress(ProtocolError):
        decode(garbage, kind, max_bytes=200)


@kinds
@property_test
@given(data=st.data())
def test_damaged_messages_never_raise_anything_but_a_protocol_error(
    kind: type[Message], data: st.DataObject
) -> None:
    wire = bytearray(encode(data.draw(instances(kind)), max_bytes=ANY_SIZE))
    where = data.draw(st.integers(0, len(wire) - 1))
    wire[where] ^= data.draw(st.integers(1, 255))

    with suppress(ProtocolError):
        decode(bytes(wire), kind, max_bytes=len(wire))


@sampled_kinds
def test_a_message_that_is_cut_short_is_refused(kind: type[Message]) -> None:
    wire = encode(SAMPLES[kind], max_bytes=ANY_SIZE)

    for length in range(len(wire)):
        with pytest.raises(MalformedMessageError):
            decode(wire[:length], kind, max_bytes=len(wire))


@sampled_kinds
def test_bytes_after_a_message_are_refused(kind: type[Message]) -> None:
    wire = encode(SAMPLES[kind], max_bytes=ANY_SIZE) + b"\0"

    with pytest.raises(MalformedMessageError):
        decode(wire, kind, max_bytes=len(wire))


@sampled_kinds
def test_an_unknown_field_is_refused_by_name(kind: type[Message]) -> None:
    wire = msgspec.msgpack.encode({**as_data(SAMPLES[kind]), "surprise": 1})

    with pytest.raises(MalformedMessageError, match="surprise"):
        decode(wire, kind, max_bytes=len(wire))


@sampled_kinds
def test_a_missing_field_is_refused_by_name(kind: type[Message]) -> None:
    for field in struct_fields(kind):
        if not field.required:
            continue
        data = as_data(SAMPLES[kind])
        del data[field.encode_name]
        wire = msgspec.msgpack.encode(data)

        with pytest.raises(MalformedMessageError, match=field.encode_name):
            decode(wire, kind, max_bytes=len(wire))


@sampled_kinds
def test_a_value_beyond_a_stated_limit_is_refused(kind: type[Message]) -> None:
    data = as_data(SAMPLES[kind])
    for field in struct_fields(kind):
        for value in unlawful_values(field.type):
            wire = msgspec.msgpack.encode({**data, field.encode_name: value})

            with pytest.raises(MalformedMessageError):
                decode(wire, kind, max_bytes=len(wire))


@pytest.mark.parametrize(
    # A status reply comes from the learner alone, and its frame bounds it as a whole.
    "kind",
    [k for k in every_message() if k.__module__ != status.__name__],
    ids=lambda k: k.__name__,
)
def test_every_number_text_and_list_from_a_peer_has_a_limit(kind: type[Message]) -> None:
    unlimited = [field.name for field in struct_fields(kind) if _is_unlimited(field.type)]

    # The payload of an envelope is bounded by the frame or record that it is all of.
    assert unlimited == (["payload"] if kind is Envelope else [])


def _is_unlimited(info: inspect.Type) -> bool:
    match info:
        case inspect.StrType() | inspect.BytesType() | inspect.VarTupleType():
            return info.max_length is None and getattr(info, "pattern", None) is None
        case inspect.FloatType():
            return info.le is None and info.lt is None
        case inspect.UnionType():
            return any(_is_unlimited(t) for t in info.types)
        case _:
            return False


def test_a_message_over_the_size_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(MalformedMessageError, match="5 bytes, limit 4") as caught:
        decode(b"?????", Message, max_bytes=4)
    assert caught.value.reason is Reason.TOO_LARGE


def test_we_never_send_a_message_over_the_size_limit() -> None:
    wire = encode(samples.TICKET, max_bytes=ANY_SIZE)

    assert encode(samples.TICKET, max_bytes=len(wire)) == wire
    with pytest.raises(LocalProtocolError, match="Ticket"):
        encode(samples.TICKET, max_bytes=len(wire) - 1)


def test_what_a_peer_wrote_is_quoted_in_part_only() -> None:
    wire = msgspec.msgpack.encode({"x" * 100_000: 1})

    with pytest.raises(MalformedMessageError) as caught:
        decode(wire, Message, max_bytes=len(wire))
    assert len(str(caught.value)) < 300
