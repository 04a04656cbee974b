"""One sample of everything that travels: what the golden bytes are the bytes of."""

from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols import (
    activation,
    advert,
    bulk,
    chunks,
    framing,
    leases,
    manifest,
    meeting,
    packed,
    probe,
    rollouts,
    sampling,
    status,
    ticket,
)
from protocols.ids import peer_id_of
from protocols.reasons import Reason

KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(32))
PEER: Final = peer_id_of(KEY.public_key())
RUN: Final = "demo-7f3a"
ADDRESS: Final = f"/ip4/203.0.113.7/tcp/4150/p2p/{PEER}"
SESSION: Final = "5e551011"
LEASE: Final = "1ea5e001"

ENTRANCE: Final = bulk.Entrance(
    certificate_sha256=b"\x66" * 32,
    token=b"\x77" * 32,
    addresses=("/ip4/203.0.113.7/tcp/4150",),
)

TICKET: Final = ticket.Ticket(
    run_id=RUN,
    learner_key=KEY.public_key().public_bytes_raw(),
    addresses=(ADDRESS,),
    expires_unix_s=1_800_000_000,
)

SAMPLING: Final = sampling.SamplingParams(
    temperature=1.0, max_new_tokens=64, stop_token_ids=(0, 198)
)

MANIFEST: Final = manifest.PolicyManifest(
    run_id=RUN,
    version=3,
    weights=manifest.PayloadRef(
        root_sha256=b"\x11" * 32,
        size_bytes=300_000,
        chunk_bytes=262_144,
        files=(manifest.FileRef("model.safetensors", 300_000),),
    ),
    weights_sha256=b"\x22" * 32,
    deltas=(
        manifest.Delta(
            base_version=2,
            base_root_sha256=b"\x44" * 32,
            codec="xor-1",
            payload=manifest.PayloadRef(
                root_sha256=b"\x55" * 32,
                size_bytes=4_000,
                chunk_bytes=262_144,
                files=(manifest.FileRef("2-3.xor-1", 4_000),),
            ),
        ),
    ),
    assets=manifest.PayloadRef(
        root_sha256=b"\x33" * 32,
        size_bytes=900,
        chunk_bytes=262_144,
        files=(manifest.FileRef("config.json", 600), manifest.FileRef("tokenizer.json", 300)),
    ),
    sampling=SAMPLING,
    max_staleness=2,
    publish_every=1,
    num_versions_kept=4,
)

ADVERT: Final = advert.NodeAdvert(
    run_id=RUN,
    peer_id=PEER,
    role="node",
    seq=5,
    addresses=(ADDRESS,),
    name="attic",
    engine="transformers",
    device="cpu",
    usd_per_hour=0.25,
    software="echo2swarm 0.1.0",
)

REPORT: Final = activation.PeerReport(PEER, Reason.BAD_CHUNK_HASH, 2)
LINK: Final = activation.LinkReport(
    PEER, bytes_sent=500, bytes_received=700, dial=activation.Dial.REACHED
)
NEIGHBOUR: Final = activation.PeerAddresses(PEER, ("/ip4/203.0.113.7/tcp/4150",))
SAMPLE_SPEC: Final = leases.SampleSpec(index=1, seed=99)
LEASED_GROUP: Final = leases.LeasedGroup(
    group_id=7, prompt_tokens=packed.pack_tokens([1, 2, 70_000]), samples=(SAMPLE_SPEC,)
)
SAMPLE_LEASE: Final = leases.Lease(
    lease_id=LEASE, min_version=3, deadline_step=5, groups=(LEASED_GROUP,), sampling=SAMPLING
)
ROLLOUT: Final = rollouts.Rollout(
    group_id=7,
    sample_index=1,
    oldest_version=3,
    newest_version=3,
    tokens=packed.pack_tokens([42, 198]),
    logprobs=packed.pack_floats([-0.5, -0.25]),
    finish_reason=rollouts.FinishReason.STOP,
)
VERDICT: Final = rollouts.RolloutVerdict(7, 1, Reason.STALE, "version 3 at step 6, limit 2")
REFUSALS: Final = (status.ReasonCount(Reason.STALE, 4),)
NODE_STATUS: Final = status.NodeStatus(
    peer_id=PEER,
    name="attic",
    engine="transformers",
    device="cpu",
    state=activation.NodeState.ACTIVE,
    is_connected=True,
    seconds_since_heartbeat=0.5,
    directive="active",
    why="needed",
    applied_version=3,
    broadcast_s=1.5,
    rollouts_per_s=2.0,
    num_in_flight=8,
    num_accepted=120,
    num_trained=112,
    refusals=REFUSALS,
    last_refusal="stale",
    usd_per_hour=0.25,
    num_engine_restarts=0,
    payload_bytes_sent=1000,
    payload_bytes_received=2000,
    upload_bytes_per_s=3_000_000.0,
    download_bytes_per_s=12_000_000.0,
    reachability=status.Reachability.YES,
    num_neighbours=12,
    warning="",
    speed_rollouts_per_s=2.5,
    speed_std=0.25,
    num_speed_samples=15,
    is_speed_prior=False,
    trouble=None,
    num_left_out=4,
)

MESSAGES: Final[dict[str, tuple[msgspec.Struct, ...]]] = {
    "ticket": (TICKET,),
    "manifest": (MANIFEST,),
    "advert": (ADVERT,),
    "activation": (
        activation.Heartbeat(
            run_id=RUN,
            session_id=SESSION,
            advert=b"\xad" * 4,
            state=activation.NodeState.ACTIVE,
            applied_version=3,
            held_version=None,
            num_rollouts_in_hand=8,
            num_engine_restarts=0,
            payload_bytes_sent=1000,
            payload_bytes_received=2000,
            receiving_s=0.5,
            reports=(REPORT,),
            links=(LINK,),
            calibrated_tokens_per_s=512.5,
            trouble=activation.Trouble(activation.TroubleKind.APPLY, "version 3: out of memory"),
        ),
        activation.HeartbeatReply(
            directive=activation.Directive.ACTIVE,
            why="needed",
            learner_step=4,
            newest_version=4,
            next_heartbeat_s=2.0,
            neighbours=(NEIGHBOUR,),
            upload_bytes_per_s=3_000_000.0,
            warning="two processes share this identity",
            num_trained=112,
        ),
    ),
    "leases": (
        leases.LeaseRequest(
            run_id=RUN, session_id=SESSION, applied_version=3, max_completions=16, wait_s=5.0
        ),
        leases.LeaseReturn(run_id=RUN, session_id=SESSION, lease_id=LEASE, why="draining"),
        leases.LeaseReply(
            lease=SAMPLE_LEASE, refusal=None, why="", learner_step=4, retry_after_s=0.0
        ),
    ),
    "rollouts": (
        rollouts.RolloutSubmission(
            run_id=RUN,
            session_id=SESSION,
            lease_id=LEASE,
            rollouts=(ROLLOUT,),
            generated_in_s=1.5,
        ),
        rollouts.SubmissionReply(verdicts=(VERDICT,), refusal=None, detail="", learner_step=6),
    ),
    "chunks": (
        chunks.Open(root_sha256=b"\x11" * 32, held=b"\x03"),
        chunks.WantHashes(),
        chunks.WantChunk(index=1),
        chunks.Held(indices=(0, 1)),
        chunks.Done(),
        chunks.Holding(bitmap=b"\x03", has_hashes=True),
        chunks.Have(indices=(0, 1)),
        chunks.Hashes(sha256s=b"\x44" * 64),
        chunks.Chunk(index=1, data=memoryview(b"weights")),
        chunks.Refused(reason=Reason.UNKNOWN_CHUNK, index=1),
    ),
    "probe": (
        probe.ProbeRequest(run_id=RUN),
        probe.ProbeGo(),
        probe.ProbeRefused(reason=Reason.RATE_LIMITED, retry_after_s=30.0),
        probe.ProbeBlock(data=b"random", is_last=True),
        probe.ProbeSeen(num_bytes=6, sha256=b"\x55" * 32),
        probe.ProbeResult(upload_bytes_per_s=3_000_000.0, download_bytes_per_s=12_000_000.0),
    ),
    "meeting": (
        meeting.Ask(PEER, 40_001),
        meeting.Invite(PEER),
        meeting.Accept(40_002),
        meeting.Go(("/ip4/203.0.113.7/tcp/40001", "/ip4/203.0.113.7/tcp/4150")),
        meeting.Declined(meeting.Fault.NOT_HERE),
    ),
    "bulk": (
        bulk.Ask(protocol=chunks.PROTOCOL_ID),
        bulk.CallBack(protocol=chunks.PROTOCOL_ID, entrance=ENTRANCE),
        bulk.Offer(entrance=ENTRANCE),
        bulk.Called(),
        bulk.Refused(why=bulk.Obstacle.UNREACHABLE),
    ),
    "status": (
        status.StatusRequest(run_id=RUN),
        status.StatusReply(
            run_id=RUN,
            phase="training",
            at_unix_s=1_790_000_000.0,
            uptime_s=60.0,
            learner_step=4,
            num_steps=40,
            newest_version=4,
            max_staleness=2,
            publish_every=1,
            rollouts_per_step=128,
            group_size=8,
            window_s=300.0,
            busy_share=0.75,
            bubble_share=0.125,
            train_s=8.0,
            broadcast_s=1.5,
            expected_broadcast_s=1.25,
            needed_rollouts_per_s=16.0,
            supplied_rollouts_per_s=18.0,
            num_buffered=32,
            num_in_flight=64,
            staleness=(status.StalenessCount(0, 100), status.StalenessCount(1, 28)),
            reward_mean=0.5,
            refusals=REFUSALS,
            worst_heartbeat_delay_s=0.0625,
            payload_bytes_sent=300_900,
            upload_bytes_per_s=5_000_000.0,
            advice="",
            nodes=(NODE_STATUS,),
            outlook=status.Outlook(
                train=status.Quantity(8.0, 8.5, 36),
                broadcast=status.Quantity(1.25, 1.5, 70),
                rollout=status.Quantity(4.0, 6.0, 0, is_prior=True),
                capacity_rollouts_per_s=20.0,
                required_rollouts_per_s=16.0,
                step_s=8.5,
                busy_share=0.9375,
                binds="learner",
                min_staleness=2,
                refused_share=0.03125,
                dropped_share=0.0,
                usd_per_hour=0.25,
                usd_per_million_tokens=0.125,
            ),
            evaluation=status.EvaluationStatus(
                newest=status.EvaluationPoint(
                    version=10,
                    samples_per_prompt=4,
                    num_prompts=63,
                    num_prompts_wanted=64,
                    mean_at_k=status.Estimate(0.5, 0.4375, 0.5625),
                    pass_at_1=status.Estimate(0.5, 0.4375, 0.5625),
                ),
                running_version=12,
                num_done=8,
                num_wanted=256,
            ),
        ),
    ),
}
"""By protocol: a sample of each message that travels as a frame of its own or under a seal."""


def wire_bytes() -> dict[str, dict[str, bytes]]:
    """Return, by protocol and name, the bytes that must never change within a version."""
    wire = {
        protocol: {type(m).__name__: msgspec.msgpack.encode(m) for m in messages}
        for protocol, messages in MESSAGES.items()
    }
    wire["ticket"]["as a line, in ASCII"] = ticket.write(TICKET, KEY).encode()
    wire["manifest"]["PolicyManifest, sealed"] = manifest.write(MANIFEST, KEY)
    wire["advert"]["NodeAdvert, sealed"] = advert.write(ADVERT, KEY)
    wire["rollouts"]["tokens 1, 65536, 4294967295, packed"] = packed.pack_tokens(
        [1, 65_536, 2**32 - 1]
    )
    wire["rollouts"]["logprobs 0, -1.5, packed"] = packed.pack_floats([0.0, -1.5])
    wire["framing"] = {"a frame around the three bytes abc": framing.frame(b"abc")}
    return wire
