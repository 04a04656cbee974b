"""The messages of chunk transfer; bitmaps are in ``test_chunks.py``."""

import msgspec
import pytest

from protocols import chunks
from protocols.chunks import Chunk, Hashes, Have, Held, Holding, OpenPayload, Reply, Request
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError
from protocols.manifest import MAX_CHUNK_BYTES, MAX_CHUNKS
from tests.protocols.samples import MESSAGES

REQUESTS, REPLIES = MESSAGES["chunks"][:5], MESSAGES["chunks"][5:]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda m: type(m).__name__)
def test_requests_are_told_apart_and_are_no_replies(message: msgspec.Struct) -> None:
    wire = encode(message, max_bytes=chunks.MAX_REQUEST_BYTES)

    assert decode(wire, Request, max_bytes=chunks.MAX_REQUEST_BYTES) == message
    with pytest.raises(MalformedMessageError):
        decode(wire, Reply, max_bytes=chunks.MAX_REPLY_BYTES)


@pytest.mark.parametrize("message", REPLIES, ids=lambda m: type(m).__name__)
def test_replies_are_told_apart_and_are_no_requests(message: msgspec.Struct) -> None:
    wire = encode(message, max_bytes=chunks.MAX_REPLY_BYTES)

    assert decode(wire, Reply, max_bytes=chunks.MAX_REPLY_BYTES) == message
    with pytest.raises(MalformedMessageError):
        decode(wire, Request, max_bytes=len(wire))


@pytest.mark.parametrize(
    "longest",
    [
        OpenPayload(bytes(32), bytes(MAX_CHUNKS // 8)),
        Held((MAX_CHUNKS - 1,) * chunks.MAX_HAVE_INDICES),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_longest_lawful_requests_fit_their_frame(longest: msgspec.Struct) -> None:
    wire = encode(longest, max_bytes=chunks.MAX_REQUEST_BYTES)

    assert decode(wire, Request, max_bytes=chunks.MAX_REQUEST_BYTES) == longest


@pytest.mark.parametrize(
    "longest",
    [
        Chunk(MAX_CHUNKS - 1, memoryview(bytes(MAX_CHUNK_BYTES))),
        Hashes(bytes(32 * MAX_CHUNKS)),
        Holding(bytes(MAX_CHUNKS // 8), has_hashes=True),
        Have((MAX_CHUNKS - 1,) * chunks.MAX_HAVE_INDICES),
    ],
    ids=lambda m: type(m).__name__,
)
def test_the_longest_lawful_replies_fit_their_frame(longest: msgspec.Struct) -> None:
    wire = encode(longest, max_bytes=chunks.MAX_REPLY_BYTES)

    assert decode(wire, Reply, max_bytes=chunks.MAX_REPLY_BYTES) == longest
