import msgspec
import pytest

from protocols import advert, heartbeat
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError
from protocols.heartbeat import (
    Dial,
    Directive,
    Heartbeat,
    HeartbeatReply,
    LinkReport,
    NodeState,
    PeerAddresses,
    PeerReport,
)
from protocols.reasons import Reason
from protocols.ticket import MAX_ADDRESSES
from tests.protocols.samples import MESSAGES, PEER

LONGEST_WORD = max(Reason, key=len)
WIDEST = "\U0001f600"
"""A character that takes four bytes: limits on text count characters."""


def test_the_longest_lawful_heartbeat_fits_its_frame() -> None:
    longest = Heartbeat(
        run_id="r" * 64,
        session_id=WIDEST * 64,
        advert=bytes(advert.MAX_BYTES),
        state=NodeState.DRAINING,
        applied_version=2**63 - 1,
        held_version=2**63 - 1,
        num_rollouts_in_hand=2**63 - 1,
        num_engine_restarts=2**63 - 1,
        payload_bytes_sent=2**63 - 1,
        payload_bytes_received=2**63 - 1,
        receiving_s=1e9,
        reports=(PeerReport(WIDEST * 80, LONGEST_WORD, 2**31 - 1),) * heartbeat.MAX_REPORTS,
        links=(LinkReport(WIDEST * 80, 2**63 - 1, 2**63 - 1, Dial.REACHED),) * heartbeat.MAX_LINKS,
    )

    wire = encode(longest, max_bytes=heartbeat.MAX_REQUEST_BYTES)

    assert decode(wire, Heartbeat, max_bytes=heartbeat.MAX_REQUEST_BYTES) == longest


def test_the_longest_lawful_reply_fits_its_frame() -> None:
    neighbour = PeerAddresses(PEER, ("/" + "a" * 255,) * MAX_ADDRESSES)
    longest = HeartbeatReply(
        directive=Directive.FINISHED,
        why=WIDEST * 200,
        learner_step=2**63 - 1,
        newest_version=2**63 - 1,
        next_heartbeat_s=3600.0,
        neighbours=(neighbour,) * heartbeat.MAX_NEIGHBOURS,
        upload_bytes_per_s=1e12,
        warning=WIDEST * 200,
    )

    wire = encode(longest, max_bytes=heartbeat.MAX_REPLY_BYTES)

    assert decode(wire, HeartbeatReply, max_bytes=heartbeat.MAX_REPLY_BYTES) == longest


@pytest.mark.parametrize("wait_s", [0.0, -1.0, 3601.0, float("nan")])
def test_a_learner_cannot_make_a_node_hammer_it_or_fall_silent(wait_s: float) -> None:
    reply = msgspec.structs.replace(MESSAGES["heartbeat"][1], next_heartbeat_s=wait_s)

    with pytest.raises(MalformedMessageError, match="next_heartbeat_s"):
        decode(msgspec.msgpack.encode(reply), HeartbeatReply, max_bytes=4096)


@pytest.mark.parametrize("receiving_s", [-1.0, 2e9, float("nan"), float("inf")])
def test_a_node_cannot_have_received_for_a_time_that_is_none(receiving_s: float) -> None:
    beat = msgspec.structs.replace(MESSAGES["heartbeat"][0], receiving_s=receiving_s)

    with pytest.raises(MalformedMessageError, match="receiving_s"):
        decode(msgspec.msgpack.encode(beat), Heartbeat, max_bytes=4096)


def test_the_words_for_states_and_directives_are_frozen() -> None:
    assert [s.value for s in NodeState] == [
        "joining",
        "syncing",
        "standby",
        "active",
        "draining",
        "left",
        "paused",
    ]
    assert [d.value for d in Directive] == ["standby", "active", "finished"]
    assert [d.value for d in Dial] == ["untried", "reached", "failed"]
