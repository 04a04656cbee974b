from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import advert, manifest, ticket
from protocols.advert import NodeAdvert
from protocols.envelope import seal_message
from protocols.errors import (
    BadSignatureError,
    MalformedMessageError,
    ProtocolError,
    RemoteProtocolError,
)
from protocols.ids import PeerId, RunId, peer_id_of
from protocols.reasons import Reason
from tests.protocols.samples import ADDRESS, ADVERT, KEY, OTHER_KEY, PEER, RUN

OTHER_PEER = peer_id_of(OTHER_KEY.public_key())
WIRE = advert.sign_advert(ADVERT, KEY)


def read(data: bytes, *, run: str = RUN, peer: str = PEER) -> NodeAdvert:
    return advert.verify_advert(data, run=RunId(run), peer=PeerId(peer))


def test_an_advert_reads_back_as_its_maker_wrote_it() -> None:
    assert read(WIRE) == ADVERT


def test_an_advert_is_stored_under_its_run_and_peer() -> None:
    assert advert.dht_key_of(RunId(RUN), PEER) == f"/echo2/{RUN}/{PEER}"


def test_nobody_can_write_an_advert_for_somebody_else() -> None:
    with pytest.raises(BadSignatureError):
        read(advert.sign_advert(ADVERT, OTHER_KEY))


def test_an_advert_under_the_key_of_another_peer_is_refused() -> None:
    signed_by_other = advert.sign_advert(ADVERT, OTHER_KEY)

    with pytest.raises(MalformedMessageError, match="under the key of"):
        read(signed_by_other, peer=OTHER_PEER)


def test_an_advert_of_another_run_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="this is 'other'") as caught:
        read(WIRE, run="other")
    assert caught.value.reason is Reason.WRONG_RUN


@pytest.mark.parametrize("context", [ticket.SIGNING_CONTEXT, manifest.SIGNING_CONTEXT])
def test_a_signature_made_for_another_purpose_makes_no_advert(context: bytes) -> None:
    with pytest.raises(BadSignatureError):
        read(seal_message(ADVERT, KEY, context=context, max_bytes=advert.MAX_BYTES))


@given(st.data())
def test_an_advert_with_a_flipped_byte_is_never_accepted(data: st.DataObject) -> None:
    wire = bytearray(WIRE)
    where = data.draw(st.integers(0, len(wire) - 1))
    wire[where] ^= data.draw(st.integers(1, 255))

    with pytest.raises(RemoteProtocolError):
        read(bytes(wire))


@given(st.binary(max_size=200), st.text(max_size=60))
def test_garbage_raises_nothing_but_a_protocol_error(data: bytes, peer: str) -> None:
    with suppress(ProtocolError):
        read(data, peer=peer)
    with suppress(ProtocolError):
        read(WIRE, peer=peer)


@pytest.mark.parametrize("role", ["learner\n", "observer", ""])
def test_there_are_two_roles_and_no_other(role: str) -> None:
    with pytest.raises(MalformedMessageError, match="role"):
        read(advert.sign_advert(msgspec.structs.replace(ADVERT, role=role), KEY))


@pytest.mark.parametrize("price", [float("nan"), -0.01, float("inf")])
def test_a_price_that_cannot_be_compared_is_refused(price: float) -> None:
    with pytest.raises(MalformedMessageError, match="usd_per_hour"):
        read(advert.sign_advert(msgspec.structs.replace(ADVERT, usd_per_hour=price), KEY))


def test_the_longest_lawful_advert_can_be_read() -> None:
    text = "t" * 120
    longest = NodeAdvert(
        run_id="r" * 64,
        peer_id=PEER,
        role="learner",
        seq=2**63 - 1,
        addresses=(ADDRESS.ljust(256, "x"),) * ticket.MAX_ADDRESSES,
        name=text,
        engine=text,
        device=text,
        usd_per_hour=10_000,
        software=text,
    )

    assert read(advert.sign_advert(longest, KEY), run="r" * 64) == longest
