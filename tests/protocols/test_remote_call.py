"""What a call declares is what both of its sides hold to."""

import pytest

from protocols import heartbeat, leases, rollouts, status
from protocols.codec import encode
from protocols.errors import LocalProtocolError, MalformedMessageError
from protocols.leases import LeaseReply, LeaseReturn
from protocols.status import StatusRequest


def test_each_side_reads_what_the_other_wrote() -> None:
    request = LeaseReturn(run_id="run-abc", session_id="12345678", lease_id="12345678", why="")
    reply = LeaseReply(lease=None, refusal=None, why="none", learner_step=1, retry_after_s=1.0)

    assert leases.CALL.decode_request(leases.CALL.encode_request(request)) == request
    assert leases.CALL.decode_reply(leases.CALL.encode_reply(reply)) == reply


def test_a_request_over_its_limit_is_neither_sent_nor_read() -> None:
    long = StatusRequest("x" * status.MAX_REQUEST_BYTES)

    with pytest.raises(LocalProtocolError, match="limit 256"):
        status.CALL.encode_request(long)
    with pytest.raises(MalformedMessageError, match="limit 256"):
        status.CALL.decode_request(encode(long, max_bytes=10_000))


def test_another_message_is_no_reply() -> None:
    with pytest.raises(MalformedMessageError, match="SubmissionReply"):
        rollouts.CALL.decode_reply(encode(StatusRequest("run-abc"), max_bytes=100))


def test_every_call_has_a_protocol_of_its_own() -> None:
    calls = (heartbeat.CALL, leases.CALL, rollouts.CALL, status.CALL)

    assert len({call.protocol_id for call in calls}) == len(calls)
