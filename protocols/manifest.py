"""Policy manifest: names one policy version; specification: ``docs/specs/manifest.md``.

A version's bytes travel as a *payload*: a byte stream named by the hash of its
list of chunk hashes. The weights are one payload per version; what seldom
changes (model config, tokenizer) is another, and is fetched once.
"""

import hashlib
from typing import Annotated, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocols.codec import Message
from protocols.envelope import seal_message, unseal
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.ids import PolicyVersion, RunId
from protocols.reasons import Reason
from protocols.sampling import SamplingParams
from protocols.ticket import RunName

PROTOCOL_ID: Final = "/echo2/manifest/1.1.0"
"""Also asked for on demand: request an empty frame, get the newest sealed manifest."""
MAX_BYTES: Final = 256 * 1024
SIGNING_CONTEXT: Final = b"echo2/manifest/1\0"

MIN_CHUNK_BYTES: Final = 64 * 1024
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
MAX_CHUNKS: Final = 262_144
MAX_FILES: Final = 1024
MAX_DELTAS: Final = 64
NUM_VERSIONS_WITH_DELTAS: Final = 2
"""Of so many of the newest versions, every holder keeps the deltas it has for others."""

Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
FileName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
]


def topic_of(run: RunId) -> str:
    """Return the gossip topic on which the manifests of ``run`` travel."""
    return f"echo2/{run}/manifest/1.1"


class FileRef(Message, frozen=True):
    """One file of a payload; the payload is its files' bytes, one after the other."""

    name: FileName
    size_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**50)]


class PayloadRef(Message, frozen=True):
    """A byte stream that peers exchange in chunks, named by its content."""

    root_sha256: Digest
    """SHA-256 of the concatenated SHA-256 hashes of the chunks."""
    size_bytes: Annotated[int, msgspec.Meta(gt=0, lt=2**50)]
    chunk_bytes: Annotated[int, msgspec.Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)]
    """All chunks but the last have this size."""
    files: Annotated[tuple[FileRef, ...], msgspec.Meta(min_length=1, max_length=MAX_FILES)]

    @property
    def num_chunks(self) -> int:
        """How many chunks the payload has."""
        return -(-self.size_bytes // self.chunk_bytes)

    def chunk_span(self, index: int) -> tuple[int, int]:
        """Return (offset, length) of chunk ``index`` in bytes."""
        offset = index * self.chunk_bytes
        return offset, min(self.chunk_bytes, self.size_bytes - offset)


class Delta(Message, frozen=True):
    """A shorter way to the weights of a version, for who holds those of an older one whole."""

    base_version: Version
    """The version it starts from."""
    base_root_sha256: Digest
    """That version's weights, as a payload: the same files and sizes, with this name."""
    codec: Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
    """How base and delta become the weights; a reader passes over what it does not know."""
    payload: PayloadRef
    """The delta, one file."""


class PolicyManifest(Message, frozen=True):
    """One published policy version, and the rules under which it is used."""

    run_id: RunName
    version: Version
    weights: PayloadRef
    """The weights of this version, whole: its safetensors files."""
    weights_sha256: Digest
    """SHA-256 of those files, concatenated; however they were obtained, they must have it."""
    deltas: Annotated[tuple[Delta, ...], msgspec.Meta(max_length=MAX_DELTAS)]
    """Shorter ways to the same weights; the one on the oldest base starts from the anchor."""
    assets: PayloadRef
    """Model config and tokenizer."""
    sampling: SamplingParams
    max_staleness: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    publish_every: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    num_versions_kept: Annotated[int, msgspec.Meta(ge=1, le=2000)]
    """How many of the newest versions every holder keeps for others."""


def check_payload(ref: PayloadRef) -> None:
    """Check what types cannot say.

    Raises:
        MalformedMessageError: sizes that do not add up, or a name given twice.
    """
    if ref.num_chunks > MAX_CHUNKS:
        raise MalformedMessageError(f"payload of {ref.num_chunks} chunks, limit {MAX_CHUNKS}")
    total = sum(f.size_bytes for f in ref.files)
    if total != ref.size_bytes:
        raise MalformedMessageError(f"files add up to {total} bytes, payload is {ref.size_bytes}")
    if len({f.name for f in ref.files}) != len(ref.files):
        raise MalformedMessageError("a file name is given twice in one payload")


def chunk_bytes_for(size_bytes: int) -> int:
    """Return the chunk size for a payload: about 500 chunks, a power of two."""
    wanted = max(1, size_bytes // 500)
    return min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, 1 << (wanted - 1).bit_length()))


def root_of(chunk_hashes: bytes) -> bytes:
    """Return the payload's name: SHA-256 of its chunk hashes, 32 bytes each."""
    return hashlib.sha256(chunk_hashes).digest()


def sign_manifest(manifest: PolicyManifest, key: Ed25519PrivateKey) -> bytes:
    """Return the signed bytes that gossip carries.

    Raises:
        LocalProtocolError: it is over ``MAX_BYTES``: too many files.
    """
    return seal_message(manifest, key, context=SIGNING_CONTEXT, max_bytes=MAX_BYTES)


def verify_manifest(data: bytes, learner_key: Ed25519PublicKey, *, run: RunId) -> PolicyManifest:
    """Verify and decode a manifest from the network.

    Raises:
        RemoteProtocolError: not signed by the learner, not a manifest, or of another run.
    """
    manifest = unseal(
        data, PolicyManifest, learner_key, context=SIGNING_CONTEXT, max_bytes=MAX_BYTES
    )
    if manifest.run_id != run:
        raise RemoteProtocolError(
            f"manifest of run {manifest.run_id!r}, this is {run!r}", reason=Reason.WRONG_RUN
        )
    check_payload(manifest.weights)
    check_payload(manifest.assets)
    _check_deltas(manifest)
    return manifest


def _check_deltas(manifest: PolicyManifest) -> None:
    for delta in manifest.deltas:
        if delta.base_version >= manifest.version:
            raise MalformedMessageError(
                f"version {manifest.version} has a delta on {delta.base_version}, no older one"
            )
        if delta.base_root_sha256 == manifest.weights.root_sha256:
            raise MalformedMessageError("a delta from weights to themselves")
        check_payload(delta.payload)
        if len(delta.payload.files) != 1 or delta.payload.size_bytes >= manifest.weights.size_bytes:
            raise MalformedMessageError("a delta of several files, or as long as the weights")
    if len({(d.base_root_sha256, d.codec) for d in manifest.deltas}) != len(manifest.deltas):
        raise MalformedMessageError("two deltas on one base")


def base_of(manifest: PolicyManifest, delta: Delta) -> PayloadRef:
    """Return the payload that ``delta`` starts from: whole weights, of an older version."""
    return msgspec.structs.replace(manifest.weights, root_sha256=delta.base_root_sha256)


def version_of(manifest: PolicyManifest) -> PolicyVersion:
    """Return the manifest's version as its own type."""
    return PolicyVersion(manifest.version)
