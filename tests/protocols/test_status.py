import msgspec

from protocols import status
from protocols.codec import decode, encode
from protocols.ids import PeerId
from protocols.reasons import Reason
from protocols.status import ReasonCount, StatusReply
from tests.protocols.samples import MESSAGES, NODE_STATUS

REPLY = MESSAGES["status"][1]


def test_the_same_reply_travels_and_lies_in_the_run_directory_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(REPLY), type=StatusReply) == REPLY


def test_a_full_swarm_refused_for_every_reason_fits_one_reply() -> None:
    node = msgspec.structs.replace(
        NODE_STATUS,
        peer_id=PeerId("p" * 80),
        name="n" * 120,
        engine="e" * 120,
        device="d" * 120,
        why="w" * 200,
        last_refusal=max(Reason, key=len),
        warning="!" * 200,
        refusals=tuple(ReasonCount(reason, 2**31) for reason in Reason),
    )
    full = msgspec.structs.replace(REPLY, nodes=(node,) * status.MAX_NODES)

    wire = encode(full, max_bytes=status.MAX_REPLY_BYTES)

    assert decode(wire, StatusReply, max_bytes=status.MAX_REPLY_BYTES) == full


def test_a_node_that_applied_nothing_yet_can_be_shown() -> None:
    fresh = msgspec.structs.replace(NODE_STATUS, applied_version=None, broadcast_s=None)

    assert decode(encode(fresh, max_bytes=4096), type(fresh), max_bytes=4096) == fresh
