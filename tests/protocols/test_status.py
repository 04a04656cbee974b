from typing import cast

import msgspec

from protocols import status
from protocols.codec import decode, encode
from protocols.ids import PeerId
from protocols.reasons import Reason
from protocols.status import EncodedStatus, NodeStatus, ReasonCount, StatusReply
from tests.protocols.samples import MESSAGES, NODE_STATUS

REPLY = cast("StatusReply", MESSAGES["status"][1])


def test_the_same_reply_travels_and_lies_in_the_run_directory_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(REPLY), type=StatusReply) == REPLY


def worst_node() -> NodeStatus:
    return msgspec.structs.replace(
        NODE_STATUS,
        peer_id=PeerId("p" * 80),
        name="\U0001f4a3" * 120,
        engine="\U0001f4a3" * 120,
        device="\U0001f4a3" * 120,
        why="\U0001f4a3" * 200,
        last_refusal="\U0001f4a3" * 200,
        warning="!" * 200,
        refusals=tuple(ReasonCount(reason, 2**62) for reason in Reason),
    )


def test_as_many_nodes_as_fit_are_listed_and_the_others_counted() -> None:
    full: StatusReply = msgspec.structs.replace(REPLY, nodes=(worst_node(),) * status.MAX_NODES)

    wire = EncodedStatus(full).seen_from("/ip4/203.0.113.7/tcp/4150")

    told = decode(wire, StatusReply, max_bytes=status.MAX_REPLY_BYTES)
    assert told.seen_at == "/ip4/203.0.113.7/tcp/4150"
    assert len(told.nodes) + told.num_nodes_left_out == status.MAX_NODES
    assert len(told.nodes) >= 256


def test_a_status_encoded_once_is_what_it_would_be_encoded_for_each() -> None:
    encoded = EncodedStatus(REPLY)
    for seen_at in ("", "/ip4/203.0.113.7/tcp/4150", "x" * 64):
        whole = msgspec.structs.replace(REPLY, seen_at=seen_at)
        assert encoded.seen_from(seen_at) == encode(whole, max_bytes=status.MAX_REPLY_BYTES)


def test_a_node_that_applied_nothing_yet_can_be_shown() -> None:
    fresh = msgspec.structs.replace(NODE_STATUS, applied_version=None, broadcast_s=None)

    assert decode(encode(fresh, max_bytes=4096), type(fresh), max_bytes=4096) == fresh
