"""Names of things on the wire, and how a peer's name follows from its key."""

from typing import Final, NewType

import base58
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocols.errors import MalformedMessageError

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58, as in ``12D3Koo...``."""
RunId = NewType("RunId", str)
PolicyVersion = NewType("PolicyVersion", int)
"""The weights after this many optimizer steps; 0 is the initial model."""
LeaseId = NewType("LeaseId", str)
GroupId = NewType("GroupId", int)
"""One prompt drawn for training; its completions form one group. Unique in a run."""

# An Ed25519 peer id is the identity multihash (0x00, 36 bytes) of the protobuf
# PublicKey{Type: Ed25519 (08 01), Data: 32 bytes (12 20)}.
# https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
_ED25519_PREFIX: Final = bytes.fromhex("002408011220")
# Decoding base58 takes time quadratic in the length; an Ed25519 peer id has 52 characters.
_MAX_PEER_ID_CHARS: Final = 80


def peer_id_of(public_key: Ed25519PublicKey) -> PeerId:
    """Return the libp2p peer id of an Ed25519 public key."""
    return PeerId(base58.b58encode(_ED25519_PREFIX + public_key.public_bytes_raw()).decode())


def public_key_of(peer: PeerId) -> Ed25519PublicKey:
    """Return the Ed25519 public key that ``peer`` is named after.

    Raises:
        MalformedMessageError: ``peer`` is not an Ed25519 peer id.
    """
    try:
        raw = base58.b58decode(peer[: _MAX_PEER_ID_CHARS + 1])
    except ValueError:
        raise MalformedMessageError(f"{peer[:60]!r} is not a base58 peer id") from None
    if len(raw) != len(_ED25519_PREFIX) + 32 or not raw.startswith(_ED25519_PREFIX):
        raise MalformedMessageError(f"{peer[:60]!r} is not an Ed25519 peer id")
    key = Ed25519PublicKey.from_public_bytes(raw[len(_ED25519_PREFIX) :])
    # base58 overlooks white space at the end: one key must not go by two names.
    if peer_id_of(key) != peer:
        raise MalformedMessageError(f"{peer[:60]!r} is not written as a peer id is")
    return key


def short(peer: PeerId) -> str:
    """Return the last eight characters: all Ed25519 peer ids start alike."""
    return peer[-8:]
