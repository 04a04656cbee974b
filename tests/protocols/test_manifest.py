from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import advert, manifest, ticket
from protocols.envelope import seal_message
from protocols.errors import (
    BadSignatureError,
    LocalProtocolError,
    MalformedMessageError,
    ProtocolError,
    RemoteProtocolError,
)
from protocols.ids import PolicyVersion, RunId
from protocols.manifest import FileRef, PayloadRef, PolicyManifest
from protocols.reasons import Reason
from tests.protocols.samples import KEY, MANIFEST, OTHER_KEY, RUN

WIRE = manifest.sign_manifest(MANIFEST, KEY)


def read(data: bytes, run: str = RUN) -> PolicyManifest:
    return manifest.verify_manifest(data, KEY.public_key(), run=RunId(run))


def with_weights(**changes: object) -> bytes:
    """Return a sealed manifest whose weights payload is changed."""
    weights = msgspec.structs.replace(MANIFEST.weights, **changes)
    return manifest.sign_manifest(msgspec.structs.replace(MANIFEST, weights=weights), KEY)


def test_what_the_learner_signed_reads_back_as_written() -> None:
    assert read(WIRE) == MANIFEST
    assert manifest.version_of(MANIFEST) == PolicyVersion(3)


def test_what_another_key_signed_is_refused() -> None:
    with pytest.raises(BadSignatureError) as caught:
        read(manifest.sign_manifest(MANIFEST, OTHER_KEY))
    assert caught.value.reason is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("context", [ticket.SIGNING_CONTEXT, advert.SIGNING_CONTEXT])
def test_a_signature_made_for_another_purpose_is_refused(context: bytes) -> None:
    with pytest.raises(BadSignatureError):
        read(seal_message(MANIFEST, KEY, context=context, max_bytes=manifest.MAX_BYTES))


def test_a_manifest_of_another_run_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="this is 'other'") as caught:
        read(WIRE, run="other")
    assert caught.value.reason is Reason.WRONG_RUN


@given(st.data())
def test_a_manifest_with_a_flipped_byte_is_never_accepted(data: st.DataObject) -> None:
    wire = bytearray(WIRE)
    where = data.draw(st.integers(0, len(wire) - 1))
    wire[where] ^= data.draw(st.integers(1, 255))

    with pytest.raises(RemoteProtocolError):
        read(bytes(wire))


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        read(data)


@given(st.binary(max_size=200))
def test_garbage_that_the_learner_signed_raises_nothing_but_a_protocol_error(
    payload: bytes,
) -> None:
    signature = KEY.sign(manifest.SIGNING_CONTEXT + payload)

    with suppress(ProtocolError):
        read(msgspec.msgpack.encode({"payload": payload, "signature": signature}))


def test_files_that_do_not_add_up_to_the_payload_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="add up to 300000 bytes, payload is 300001"):
        read(with_weights(size_bytes=300_001))


def test_the_assets_are_checked_as_the_weights_are() -> None:
    assets = msgspec.structs.replace(MANIFEST.assets, size_bytes=901)

    with pytest.raises(MalformedMessageError, match="add up"):
        read(manifest.sign_manifest(msgspec.structs.replace(MANIFEST, assets=assets), KEY))


def test_a_file_named_twice_is_refused() -> None:
    twice = (FileRef("a", 100_000), FileRef("a", 200_000))

    with pytest.raises(MalformedMessageError, match="twice"):
        read(with_weights(files=twice))


def test_a_payload_of_too_many_chunks_is_refused() -> None:
    size = (manifest.MAX_CHUNKS + 1) * manifest.MIN_CHUNK_BYTES

    with pytest.raises(MalformedMessageError, match="chunks, limit 262144"):
        read(
            with_weights(
                size_bytes=size, chunk_bytes=manifest.MIN_CHUNK_BYTES, files=(FileRef("a", size),)
            )
        )
    manifest.check_payload(
        PayloadRef(
            bytes(32),
            manifest.MAX_CHUNKS * manifest.MIN_CHUNK_BYTES,
            manifest.MIN_CHUNK_BYTES,
            (FileRef("a", manifest.MAX_CHUNKS * manifest.MIN_CHUNK_BYTES),),
        )
    )


def with_delta(**changes: object) -> bytes:
    """Return a sealed manifest whose delta is changed."""
    delta = msgspec.structs.replace(MANIFEST.deltas[0], **changes)
    return manifest.sign_manifest(msgspec.structs.replace(MANIFEST, deltas=(delta,)), KEY)


@pytest.mark.parametrize("base", [3, 4])
def test_a_delta_on_itself_or_on_a_later_version_is_refused(base: int) -> None:
    with pytest.raises(MalformedMessageError, match=f"delta on {base}"):
        read(with_delta(base_version=base))


def test_a_delta_from_the_weights_to_themselves_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="to themselves"):
        read(with_delta(base_root_sha256=MANIFEST.weights.root_sha256))


def test_a_delta_is_one_file_and_shorter_than_the_weights() -> None:
    payload = MANIFEST.deltas[0].payload
    two = (FileRef("a", 2_000), FileRef("b", 2_000))
    with pytest.raises(MalformedMessageError, match="several files"):
        read(with_delta(payload=msgspec.structs.replace(payload, files=two)))

    size = MANIFEST.weights.size_bytes
    long = msgspec.structs.replace(payload, size_bytes=size, files=(FileRef("a", size),))
    with pytest.raises(MalformedMessageError, match="as long as the weights"):
        read(with_delta(payload=long))


def test_a_delta_whose_sizes_do_not_add_up_is_refused() -> None:
    payload = msgspec.structs.replace(MANIFEST.deltas[0].payload, size_bytes=3_999)

    with pytest.raises(MalformedMessageError, match="add up"):
        read(with_delta(payload=payload))


def test_two_deltas_on_one_base_are_refused_unless_their_codecs_differ() -> None:
    delta = MANIFEST.deltas[0]
    twice = msgspec.structs.replace(MANIFEST, deltas=(delta, delta))
    with pytest.raises(MalformedMessageError, match="two deltas"):
        read(manifest.sign_manifest(twice, KEY))

    other = msgspec.structs.replace(delta, codec="a-later-one")
    either = msgspec.structs.replace(MANIFEST, deltas=(delta, other))
    assert read(manifest.sign_manifest(either, KEY)) == either


def test_a_base_is_the_same_files_under_another_name() -> None:
    base = manifest.base_of(MANIFEST, MANIFEST.deltas[0])

    assert base.root_sha256 == MANIFEST.deltas[0].base_root_sha256
    assert (base.files, base.size_bytes) == (MANIFEST.weights.files, MANIFEST.weights.size_bytes)
    assert base.chunk_bytes == MANIFEST.weights.chunk_bytes


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", ".bashrc", "a\n", ""])
def test_a_file_name_that_could_leave_its_folder_is_refused(name: str) -> None:
    with pytest.raises(MalformedMessageError, match="name"):
        read(with_weights(files=(FileRef(name, 300_000),)))


def test_a_manifest_too_long_to_be_read_is_never_written() -> None:
    many = tuple(FileRef("f" * 115 + f"{i:05}", 1000) for i in range(manifest.MAX_FILES))
    payload = PayloadRef(bytes(32), 1000 * len(many), manifest.MIN_CHUNK_BYTES, many)

    with pytest.raises(LocalProtocolError, match="limit 262144"):
        manifest.sign_manifest(
            msgspec.structs.replace(MANIFEST, weights=payload, assets=payload), KEY
        )


@given(st.integers(1, 2**50), st.integers(18, 22).map(lambda bits: 1 << bits))
def test_chunks_cover_the_payload_without_gap_or_overlap(size: int, chunk: int) -> None:
    ref = PayloadRef(bytes(32), size, chunk, (FileRef("a", size),))
    last = ref.num_chunks - 1

    assert ref.chunk_span(0)[0] == 0
    assert sum(ref.chunk_span(last)) == size
    assert 0 < ref.chunk_span(last)[1] <= chunk
    if last:
        assert sum(ref.chunk_span(last - 1)) == ref.chunk_span(last)[0]


@pytest.mark.parametrize(
    ("size", "chunk"),
    [
        (1, 65_536),
        (131_072_000, 262_144),
        (131_072_501, 524_288),
        (1_000_000_000, 2_097_152),
        (10_000_000_000, 4_194_304),
        (2**40, 4_194_304),
    ],
)
def test_a_payload_has_about_500_chunks_within_the_bounds(size: int, chunk: int) -> None:
    assert manifest.chunk_bytes_for(size) == chunk


@given(st.integers(1, 2**50))
def test_chunk_sizes_are_powers_of_two_that_a_manifest_may_state(size: int) -> None:
    chunk = manifest.chunk_bytes_for(size)

    assert chunk.bit_count() == 1
    assert manifest.MIN_CHUNK_BYTES <= chunk <= manifest.MAX_CHUNK_BYTES


def test_a_payload_is_named_by_the_hash_of_its_chunk_hashes() -> None:
    assert manifest.root_of(b"").hex() == (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


def test_the_manifests_of_two_runs_travel_on_two_topics() -> None:
    assert manifest.topic_of(RunId("a")) == "echo2/a/manifest/1.1"
    assert manifest.topic_of(RunId("a")) != manifest.topic_of(RunId("b"))
