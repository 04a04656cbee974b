"""A status reply with a bit of everything in it."""

import msgspec

from protocols.heartbeat import NodeState
from protocols.reasons import Reason
from protocols.status import NodeStatus, Reachability, ReasonCount, StalenessCount, StatusReply

NODE = NodeStatus(
    peer_id="12D3KooWSampleSampleSampleSampleSampleSample00000001",
    name="node-a",
    engine="transformers",
    device="cpu",
    state=NodeState.ACTIVE,
    is_connected=True,
    seconds_since_heartbeat=0.4,
    directive="active",
    why="needed",
    applied_version=12,
    broadcast_s=2.13,
    rollouts_per_s=4.25,
    num_in_flight=16,
    num_accepted=1234,
    num_trained=1180,
    refusals=(),
    last_refusal="",
    usd_per_hour=0.5,
    num_engine_restarts=0,
    payload_bytes_sent=1_300_000_000,
    payload_bytes_received=3_220_000_000,
    upload_bytes_per_s=3_000_000.0,
    download_bytes_per_s=12_500_000.0,
    reachability=Reachability.YES,
    num_neighbours=12,
)

STATUS = StatusReply(
    run_id="demo-7f3a",
    phase="training",
    at_unix_s=1_700_000_000.0,
    uptime_s=312.0,
    learner_step=12,
    num_steps=32,
    newest_version=12,
    max_staleness=2,
    publish_every=1,
    rollouts_per_step=128,
    group_size=8,
    window_s=120.0,
    busy_share=0.625,
    bubble_share=0.25,
    train_s=8.0,
    broadcast_s=2.3,
    needed_rollouts_per_s=16.0,
    supplied_rollouts_per_s=12.25,
    num_buffered=34,
    num_in_flight=128,
    staleness=(StalenessCount(0, 512), StalenessCount(1, 1024), StalenessCount(2, 12)),
    reward_mean=0.547,
    refusals=(ReasonCount(Reason.STALE, 3), ReasonCount(Reason.WRONG_VERSION, 5)),
    worst_heartbeat_delay_s=0.012,
    payload_bytes_sent=4_000_000_000,
    advice="Supply is short by 3.8 rollouts/s.",
    expected_broadcast_s=1.9,
    upload_bytes_per_s=5_000_000.0,
    nodes=(
        msgspec.structs.replace(
            NODE,
            peer_id=NODE.peer_id[:-1] + "2",
            name="node-b",
            reachability=Reachability.NO,
            applied_version=11,
            refusals=(ReasonCount(Reason.STALE, 3),),
            last_refusal="stale: version 8 at step 12, at most 2",
        ),
        NODE,
    ),
)


def status_with(**changes: object) -> StatusReply:
    """Return the sample with some fields changed."""
    return msgspec.structs.replace(STATUS, **changes)


def node_with(**changes: object) -> NodeStatus:
    """Return the sample node with some fields changed."""
    return msgspec.structs.replace(NODE, **changes)
