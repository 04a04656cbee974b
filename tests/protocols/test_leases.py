import msgspec
import pytest

from protocols import leases
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError
from protocols.leases import LeaseCall, LeaseRequest, LeaseReturn
from tests.protocols.samples import LEASED_GROUP, MESSAGES, SAMPLE_LEASE

REQUEST, RETURN, _ = MESSAGES["leases"]


def read(data: bytes) -> LeaseRequest | LeaseReturn:
    call: LeaseCall = decode(data, LeaseCall, max_bytes=leases.MAX_REQUEST_BYTES)
    return call


def test_asking_and_giving_back_are_told_apart() -> None:
    assert read(encode(REQUEST, max_bytes=4096)) == REQUEST
    assert read(encode(RETURN, max_bytes=4096)) == RETURN


@pytest.mark.parametrize("tag", ["steal", "", None, 1])
def test_a_call_of_no_known_kind_is_refused(tag: object) -> None:
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(REQUEST))

    with pytest.raises(MalformedMessageError):
        read(msgspec.msgpack.encode({**data, "type": tag}))


def test_a_lease_counts_the_completions_it_asks_for() -> None:
    three = msgspec.structs.replace(LEASED_GROUP, samples=LEASED_GROUP.samples * 3)
    lease = msgspec.structs.replace(SAMPLE_LEASE, groups=(LEASED_GROUP, three))

    assert lease.num_completions == 4


def test_the_longest_lawful_calls_fit_their_frame() -> None:
    wide = "\U0001f600"
    longest = LeaseReturn("r" * 64, wide * 64, wide * 64, wide * 200)

    assert read(encode(longest, max_bytes=leases.MAX_REQUEST_BYTES)) == longest


def test_a_node_cannot_hold_a_request_open_for_long() -> None:
    too_long = msgspec.structs.replace(REQUEST, wait_s=leases.MAX_WAIT_S + 0.1)

    with pytest.raises(MalformedMessageError, match="wait_s"):
        read(encode(too_long, max_bytes=4096))
