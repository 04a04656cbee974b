from contextlib import suppress

import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from protocols.errors import MalformedMessageError, ProtocolError
from protocols.ids import PeerId, peer_id_of, public_key_of, short
from tests.protocols.samples import KEY, PEER


@pytest.mark.parametrize("seed", [bytes(range(32)), b"\x07" * 32, b"\xff" * 32])
def test_peer_ids_are_those_of_libp2p(seed: bytes) -> None:
    theirs = create_new_key_pair(seed).public_key

    peer = str(ID.from_pubkey(theirs))

    public_key = public_key_of(PeerId(peer))
    assert public_key.public_bytes_raw() == theirs.to_bytes()
    assert peer_id_of(public_key) == peer


def test_the_peer_id_of_a_key_is_frozen() -> None:
    assert peer_id_of(KEY.public_key()) == "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"


@given(st.text(max_size=80))
def test_any_text_raises_nothing_but_a_protocol_error(text: str) -> None:
    with suppress(ProtocolError):
        public_key_of(PeerId(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base58: 0OIl",
        PEER[:-1],
        PEER + "1",
        "1" + PEER,
        "QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC",
        "z" * 1_000_000,
    ],
)
def test_what_is_no_ed25519_peer_id_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessageError, match="peer id"):
        public_key_of(PeerId(text))


@pytest.mark.parametrize("num_key_bytes", [0, 31, 33])
def test_a_peer_id_around_a_key_of_another_length_is_refused(num_key_bytes: int) -> None:
    raw = bytes.fromhex("002408011220") + bytes(num_key_bytes)

    with pytest.raises(MalformedMessageError, match="not an Ed25519 peer id"):
        public_key_of(PeerId(base58.b58encode(raw).decode()))


@pytest.mark.parametrize("alias", [PEER + " ", PEER + "\n", PEER + "\t\n"])
def test_one_key_never_goes_by_two_names(alias: str) -> None:
    with pytest.raises(MalformedMessageError, match="not written as a peer id"):
        public_key_of(PeerId(alias))


def test_short_forms_tell_peers_apart_though_all_start_alike() -> None:
    assert short(PEER) == PEER[-8:]
