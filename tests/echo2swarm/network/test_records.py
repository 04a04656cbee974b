import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.records import check_record, newest_record
from protocols import advert
from protocols.advert import NodeAdvert
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.ids import RunId, peer_id_of
from protocols.reasons import Reason

RUN = RunId("run-1")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
PEER = peer_id_of(KEY.public_key())
STRANGER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)


def sealed(seq: int, *, name: str = "", signer: Ed25519PrivateKey = KEY) -> bytes:
    return advert.sign_advert(
        NodeAdvert(
            run_id=RUN,
            peer_id=PEER,
            role="node",
            seq=seq,
            addresses=(),
            name=name,
            engine="",
            device="",
            usd_per_hour=0.0,
            software="",
        ),
        signer,
    )


@given(st.lists(st.integers(0, 2**40), min_size=1, unique=True), st.randoms())
def test_the_highest_sequence_number_wins_in_any_order(seqs: list[int], rng: object) -> None:
    values = [sealed(seq) for seq in seqs]

    assert newest_record(advert.dht_key_of(RUN, PEER), values) == sealed(max(seqs))


def test_two_readers_agree_on_equal_numbers() -> None:
    values = [sealed(1, name="a"), sealed(1, name="b")]
    key = advert.dht_key_of(RUN, PEER)

    assert newest_record(key, values) == newest_record(key, values[::-1])


def test_a_forged_newer_value_does_not_count() -> None:
    key = advert.dht_key_of(RUN, PEER)

    assert newest_record(key, [sealed(1), sealed(2, signer=STRANGER), b"junk"]) == sealed(1)
    assert newest_record(key, [sealed(2, signer=STRANGER)]) is None
    assert newest_record(key, []) is None


def test_an_advert_counts_under_its_own_key_only() -> None:
    other_peer = advert.dht_key_of(RUN, peer_id_of(STRANGER.public_key()))
    with pytest.raises(RemoteProtocolError) as of_another_peer:
        check_record(other_peer, sealed(1))
    with pytest.raises(RemoteProtocolError) as of_another_run:
        check_record(advert.dht_key_of(RunId("run-2"), PEER), sealed(1))

    assert of_another_peer.value.reason is Reason.BAD_SIGNATURE
    assert of_another_run.value.reason is Reason.WRONG_RUN


@pytest.mark.parametrize(
    "key", ["", "/", "/echo2", "/echo2/run-1", "/pk/run-1/x", "echo2/run-1/x", "/echo2/a/b/c"]
)
def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(MalformedMessageError):
        check_record(key, sealed(1))
