"""A plan from a run's directory: what was measured, and from the file what can't be."""

from pathlib import Path

import msgspec
import pytest

from echo2swarm.plan.assumptions import Assumptions, LimitsTable, OfferTable, PlanLearnerTable
from echo2swarm.plan.measured import from_run
from echo2swarm.system.errors import StoreError, UsageError
from protocols.status import Outlook, Quantity, StatusReply
from tests.echo2swarm.sample_run import DELTA_BYTES, write_run
from tests.echo2swarm.sample_status import node_with, status_with

OUTLOOK = Outlook(
    train=Quantity(6.0, 6.5, 24),
    broadcast=Quantity(1.0, 2.0, 40),
    rollout=Quantity(3.0, 5.0, 90),
    capacity_rollouts_per_s=17.0,
    required_rollouts_per_s=16.0,
    step_s=6.0,
    busy_share=1.0,
    binds="learner",
    min_staleness=2,
    refused_share=0.0,
    dropped_share=0.0,
    usd_per_hour=1.0,
    usd_per_million_tokens=None,
)


def run_dir(folder: Path, **changes: object) -> Path:
    write_run(folder)
    known: dict[str, object] = {
        "outlook": OUTLOOK,
        "upload_bytes_per_s": 5e6,
        "expected_broadcast_s": 1.0,
        "broadcast_s": 2.0,
        "nodes": (
            node_with(speed_rollouts_per_s=17.0),
            node_with(name="away", is_connected=False, speed_rollouts_per_s=17.0),
            node_with(name="new"),
        ),
        **changes,
    }
    status: StatusReply = status_with(**known)
    (folder / "status.json").write_bytes(msgspec.json.encode(status))
    return folder


def test_what_was_measured_is_planned_with(tmp_path: Path) -> None:
    found = from_run(run_dir(tmp_path / "run"), None)

    assert found.learner.prompts_per_step * found.learner.group_size == 128
    assert found.learner.train_s == 6.0
    assert found.learner.overhead_s == pytest.approx(0.5)
    assert found.learner.upload_mbit == pytest.approx(40.0)
    assert (found.rollouts.rollout_s, found.rollouts.rollout_p50_s) == (5.0, 3.0)
    assert found.weights.payload_mb == pytest.approx(DELTA_BYTES / 1e6)
    assert found.weights.load_s == pytest.approx(2.0 - 1.15)


def test_nodes_that_are_there_are_offers_with_the_speed_that_they_work_at(
    tmp_path: Path,
) -> None:
    (only,) = from_run(run_dir(tmp_path / "run"), None).offer

    assert only.name == "node-a 00000001"
    # It was paced: 4.25 rollouts/s were asked of it, 17 it can make.
    assert only.rollouts_per_s == 17.0
    assert only.usd_per_hour == 0.5
    assert only.upload_mbit == pytest.approx(24.0)


def test_after_the_end_of_a_run_all_nodes_that_were_measured_are_offers(tmp_path: Path) -> None:
    offers = from_run(run_dir(tmp_path / "run", phase="finished"), None).offer

    assert [offer.name.split()[0] for offer in offers] == ["node-a", "away"]


def test_prices_limits_and_further_offers_are_the_files(tmp_path: Path) -> None:
    more = OfferTable(name="cloud", rollouts_per_s=2.0, usd_per_hour=1.0, count=9)
    base = Assumptions(
        learner=PlanLearnerTable(usd_per_hour=20.0, train_s=99.0, tokens_per_rollout=77.0),
        limits=LimitsTable(max_staleness=3),
        offer=(more,),
    )

    found = from_run(run_dir(tmp_path / "run"), base)

    assert found.learner.usd_per_hour == 20.0
    assert found.learner.train_s == 6.0
    assert found.learner.tokens_per_rollout == 77.0
    assert found.limits.max_staleness == 3
    assert found.offer[-1] == more
    assert len(found.offer) == 2


def test_a_run_without_updates_is_told_to_wait_for(tmp_path: Path) -> None:
    folder = run_dir(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("")

    with pytest.raises(StoreError, match="after the first steps"):
        from_run(folder, None)


def test_a_run_without_rollouts_is_told_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no rollout has been measured"):
        from_run(run_dir(tmp_path / "run", outlook=None), None)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run directory"):
        from_run(tmp_path / "none", None)
