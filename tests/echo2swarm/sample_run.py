"""A run directory as a learner leaves it, made with the real formats."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from echo2swarm.system.jsonl import JsonLines
from learner.ledger.schema import SCHEMA, SCHEMA_VERSION
from protocols.status import StalenessCount
from tests.echo2swarm.sample_status import node_with, status_with

START_UNIX_S = 1_700_000_000.0
NUM_STEPS = 24
PAYLOAD_BYTES = 1_000_000
DELTA_BYTES = PAYLOAD_BYTES // 50
PEER_A, PEER_B = node_with().peer_id, node_with().peer_id[:-1] + "2"


def write_run(folder: Path) -> None:
    """Write all files of a run of 24 steps, one each 10 s, of which 6 s are training."""
    folder.mkdir(parents=True, exist_ok=True)
    write_status(folder)
    write_metrics(folder)
    write_events(folder)
    write_ledger(folder)


def write_evaluations(folder: Path) -> None:
    """Of version 0, of version 10 with prompts missing, and of version 20 without a result."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db, db:
        for version, num_prompts, mean in ((0, 64, 0.25), (10, 48, 0.75), (20, 0, None)):
            figures = None
            if mean is not None:
                estimate = {"value": mean, "low": mean - 0.125, "high": mean + 0.125}
                figures = {
                    "version": version,
                    "num_prompts": num_prompts,
                    "num_prompts_wanted": 64,
                    "samples_per_prompt": 4,
                    "mean_at_k": estimate,
                    "pass_at_1": estimate,
                    "pass_at_k": estimate,
                    "num_failed": 1,
                    "num_tokens": 1000,
                    "num_truncated": 3,
                    "took_s": 30.0,
                }
            db.execute(
                "INSERT INTO evaluations VALUES (?, 64, 4, 1.0, 16, ?, ?, ?, ?)",
                (
                    version,
                    START_UNIX_S,
                    START_UNIX_S + 30,
                    "dropped" if figures is None else "complete",
                    None if figures is None else json.dumps(figures),
                ),
            )
        # One that still goes on has nothing to tell.
        db.execute(
            "INSERT INTO evaluations VALUES (22, 64, 4, 1.0, 16, ?, NULL, NULL, NULL)",
            (START_UNIX_S,),
        )


def write_status(folder: Path) -> None:
    status = status_with(
        phase="finished",
        learner_step=NUM_STEPS,
        num_steps=NUM_STEPS,
        newest_version=NUM_STEPS,
        payload_bytes_sent=30_000_000,
        staleness=(StalenessCount(0, 1),),  # wrong on purpose: the report reads the ledger
        nodes=(
            node_with(payload_bytes_sent=11_000_000),
            node_with(peer_id=PEER_B, name="node|b<script>", payload_bytes_sent=9_000_000),
        ),
    )
    (folder / "status.json").write_bytes(msgspec.json.encode(status))


def write_metrics(folder: Path) -> None:
    with JsonLines(folder / "metrics.jsonl") as lines:
        for step in range(1, NUM_STEPS + 1):
            lines.write(
                {
                    "unix_s": START_UNIX_S + 10 * step,
                    "step": step,
                    "reward_mean": 0.3 if step <= 12 else 0.7,
                    "wait_s": 3.0,
                    "train_s": 6.0,
                    "write_s": 0.5,
                    "publish_s": 1.0,
                    "staleness": {"0": 2, "2": 1},
                    "drift_by_peer": {
                        PEER_A: {
                            "num_tokens": 3,
                            "drift_mean": 0.02 if step % 2 else 0.04,
                            "kl_behaviour_prox": 0.001,
                        }
                    },
                }
            )


def write_events(folder: Path) -> None:
    with JsonLines(folder / "events.jsonl") as lines:
        lines.write({"unix_s": START_UNIX_S, "level": "info", "event": "run.started"})
        for version in range(NUM_STEPS + 1):
            # The first has none; the others from the version before, and from one more.
            bases = {version - 1: DELTA_BYTES, version - 2: 2 * DELTA_BYTES}
            deltas = {str(base): size for base, size in bases.items() if base >= 0}
            lines.write(
                {
                    "unix_s": START_UNIX_S + 10 * version,
                    "level": "info",
                    "event": "version.published",
                    "version": version,
                    "delta_bytes": deltas,
                }
            )
            for name, seconds in (("node-a", 1.0), ("node-b", 2.0), ("late", None)):
                lines.write(
                    {
                        "unix_s": START_UNIX_S + 10 * version + (seconds or 9),
                        "level": "info",
                        "event": "version.applied",
                        "name": name,
                        "version": version,
                        "broadcast_s": seconds,
                    }
                )


def write_ledger(folder: Path) -> None:
    """Every step trains 2 rollouts of the version before and, from step 3 on, 1 two steps old."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(f"{SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};")
        db.executemany(
            "INSERT INTO meta VALUES (?, ?)", [("run_id", "demo-7f3a"), ("max_staleness", "2")]
        )
        db.executemany(
            "INSERT INTO nodes VALUES (?, ?, 'transformers', 'cpu', 0.5, 1, 0, 0)",
            [(PEER_A, "node-a"), (PEER_B, "node|b<script>")],
        )
        for version in range(NUM_STEPS + 1):
            at_s = START_UNIX_S + 10 * version
            db.execute(
                "INSERT INTO versions VALUES (?, x'00', ?, ?)", (version, PAYLOAD_BYTES, at_s)
            )
        for step in range(NUM_STEPS):
            at_s = START_UNIX_S + 10 * step
            lease = f"lease-{step:04}"
            db.execute(
                "INSERT INTO groups VALUES (?, x'00', ?, ?, NULL, ?)", (step, at_s, step, at_s)
            )
            db.execute(
                "INSERT INTO leases VALUES (?, ?, 'session1', ?, ?, ?, ?, 'done', 0)",
                (lease, PEER_A, step, step + 2, at_s, at_s + 8),
            )
            versions = [step, step, step - 2] if step >= 2 else [step, step]
            db.executemany(
                "INSERT INTO leased_samples VALUES (?, ?, ?, 0)",
                [(lease, step, i) for i in range(4)],
            )
            db.executemany(
                "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, 4, 0, 1.0, '', NULL, NULL, ?, ?)",
                [
                    (step, i, lease, PEER_A, version, at_s + 6 + i, step)
                    for i, version in enumerate(versions)
                ],
            )
