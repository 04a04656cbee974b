"""Advert: what a participant says of itself in the DHT; specification: ``docs/specs/advert.md``.

Signed with the participant's own key, so a record can be stored and handed on
by anybody. Claims in it (speed, memory) are hints for a first activation only.
"""

from typing import Annotated, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.codec import Message, decode
from protocols.envelope import Envelope, seal_message
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.ids import PeerId, RunId, public_key_of
from protocols.reasons import Reason
from protocols.ticket import MAX_ADDRESSES, Address, RunName

MAX_BYTES: Final = 8192
SIGNING_CONTEXT: Final = b"echo2/advert/1\0"

Text = Annotated[str, msgspec.Meta(max_length=120)]


class NodeAdvert(Message, frozen=True):
    """One participant of one run."""

    run_id: RunName
    peer_id: Annotated[str, msgspec.Meta(min_length=1, max_length=80)]
    role: Annotated[str, msgspec.Meta(pattern=r"^(learner|node)\Z")]
    seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Of two adverts of one peer the one with the higher number counts."""
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)]
    name: Text
    """What the contributor calls this machine."""
    engine: Text
    device: Text
    usd_per_hour: Annotated[float, msgspec.Meta(ge=0, le=10_000)]
    software: Text


def dht_key_of(run: RunId, peer: PeerId) -> str:
    """Return the DHT key of the advert of ``peer`` in ``run``."""
    return f"/echo2/{run}/{peer}"


def sign_advert(advert: NodeAdvert, key: Ed25519PrivateKey) -> bytes:
    """Return the signed bytes that the DHT stores."""
    return seal_message(advert, key, context=SIGNING_CONTEXT, max_bytes=MAX_BYTES)


def verify_advert(data: bytes, *, run: RunId, peer: PeerId) -> NodeAdvert:
    """Verify and decode the advert of ``peer``.

    Raises:
        RemoteProtocolError: not signed by ``peer``, not an advert, or about something else.
    """
    envelope = decode(data, Envelope, max_bytes=MAX_BYTES)
    advert = envelope.open(NodeAdvert, public_key_of(peer), context=SIGNING_CONTEXT)
    if advert.peer_id != peer:
        raise MalformedMessageError(f"advert of {advert.peer_id!r} under the key of {peer!r}")
    if advert.run_id != run:
        raise RemoteProtocolError(
            f"advert for run {advert.run_id!r}, this is {run!r}", reason=Reason.WRONG_RUN
        )
    return advert
