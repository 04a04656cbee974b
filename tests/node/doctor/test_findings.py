"""What the doctor says in each situation: pass, warn or fail, and what to do."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from echo2swarm.system.extras import install_command, install_extra
from node.doctor.findings import (
    Finding,
    Package,
    Prospect,
    Severity,
    judge_clock,
    judge_device,
    judge_disk,
    judge_engine,
    judge_gpu,
    judge_learner,
    judge_link,
    judge_memory,
    judge_packages,
    judge_prospect,
    judge_reach,
    judge_state_dir,
    worst_of,
)
from node.doctor.forecast import late_versions, prospect_of
from node.doctor.machine import _package, examine_software, examine_state_dir, gpu_drivers
from node.doctor.router import Router, router_between
from protocols.manifest import FileRef, PayloadRef
from protocols.status import Outlook, Reachability, StatusReply
from tests.echo2swarm.weights.test_file_names import MANIFEST
from tests.protocols.samples import MESSAGES

GB = 10**9
KEEPING = Router(host="203.0.113.9", keeps_ports=True)
CHANGING = Router(host="203.0.113.9", keeps_ports=False)
PROSPECT = Prospect(
    late_versions=2,
    max_staleness=3,
    broadcast_s=4.0,
    rollout_s=6.0,
    step_s=5.0,
    rollouts_per_s=2.0,
    required_rollouts_per_s=20.0,
)


@pytest.mark.parametrize(
    ("finding", "verdict", "says", "remedy"),
    [
        (judge_disk(100 * GB, needed_bytes=None, quota_bytes=None), "pass", "100 GB", ""),
        (judge_disk(GB // 2, needed_bytes=None, quota_bytes=None), "warn", "500 MB", "free"),
        (judge_disk(10**6, needed_bytes=None, quota_bytes=None), "fail", "1.00 MB", "--state-dir"),
        (judge_disk(410_000, needed_bytes=380_000, quota_bytes=None), "fail", "67.1 MB stay", "67"),
        (judge_disk(9 * GB, needed_bytes=10 * GB, quota_bytes=None), "fail", "10.0 GB", "1.07 GB"),
        (judge_disk(99 * GB, needed_bytes=10 * GB, quota_bytes=8 * GB), "fail", "8.00", "10"),
        (judge_disk(99 * GB, needed_bytes=10 * GB, quota_bytes=10 * GB), "pass", "10.0 GB", ""),
        (judge_device("cuda:0", []), "fail", "no GPU driver", "leave --device out"),
        (judge_device("cuda", []), "fail", "cuda was asked for", "--device"),
        (judge_device("cuda:7", ["/dev/nvidiactl"]), "pass", "/dev/nvidiactl", ""),
        (judge_device("auto", []), "pass", "auto", ""),
        (judge_device("cpu", []), "pass", "cpu", ""),
        (judge_state_dir("x can't be written"), "fail", "x can't", "--state-dir"),
        (judge_clock(0.3, uncertainty_s=0.1), "pass", "", ""),
        (judge_clock(3600.0, uncertainty_s=0.1), "warn", "60 min ahead of", "set-ntp"),
        (judge_clock(-3600.0, uncertainty_s=0.1), "warn", "behind", "set-ntp"),
        (judge_clock(8.0, uncertainty_s=4.0), "pass", "", ""),
        (judge_learner("refused", phase="", round_trip_s=None), "fail", "refused", "online"),
        (judge_learner("", phase="finished", round_trip_s=0.1), "fail", "finished", "ticket"),
        (judge_learner("", phase="training", round_trip_s=0.1), "pass", "100 ms", ""),
        (judge_link(1e6, 2e6, ""), "pass", "8.00 up, 16.0 down", ""),
        (judge_link(1e5, 2e6, ""), "warn", "0.80 up", "cable"),
        (judge_link(None, None, "busy"), "warn", "busy", "joined"),
        (judge_engine("died", tokens_per_s=None, with_what="x"), "fail", "died", "words"),
        (judge_engine("killed by SIGKILL", tokens_per_s=None, with_what="x"), "fail", "", "memory"),
        (judge_engine("", tokens_per_s=120.0, with_what="version 3"), "pass", "120 tokens/s", ""),
        (judge_memory(8 * GB, model_bytes=GB), "pass", "2.90 GB", ""),
        (judge_memory(2 * GB, model_bytes=GB), "fail", "2.90 GB", "smaller model"),
        (judge_memory(None, model_bytes=GB), "warn", "can't be told", "fits"),
        (
            judge_prospect(PROSPECT, missing=""),
            "pass",
            "2 versions late, the bound is 3: useful",
            "",
        ),
        (judge_prospect(None, missing="no update"), "warn", "no update", "join"),
    ],
)
def test_each_situation_has_its_line(
    finding: Finding, verdict: str, says: str, remedy: str
) -> None:
    assert finding.verdict.value == verdict, finding
    assert says in finding.text
    assert remedy in finding.remedy
    assert bool(finding.remedy) == (verdict != "pass")


@pytest.mark.parametrize(
    ("model_bytes", "free", "verdict"),
    [(None, 1, "pass"), (10 * GB, 20, "pass"), (10 * GB, 5, "warn"), (30 * GB, 24, "fail")],
)
def test_the_gpu_is_held_against_the_model(
    model_bytes: int | None, free: int, verdict: str
) -> None:
    finding = judge_gpu(
        "Fake", driver="1", total_bytes=24 * GB, free_bytes=free * GB, model_bytes=model_bytes
    )
    assert finding.verdict.value == verdict


def test_a_machine_without_a_gpu_is_no_failure() -> None:
    finding = judge_gpu(None, driver="no driver", total_bytes=0, free_bytes=0, model_bytes=GB)
    assert finding.verdict is Severity.WARN


def test_reachability_is_what_others_found_else_a_guess() -> None:
    def judged(known: Reachability, *, is_public: bool = False) -> Severity:
        return judge_reach(["10.0.0.2"], reachability=known, is_public=is_public).verdict

    behind = judge_reach(
        ["203.0.113.1"], reachability=Reachability.UNKNOWN, is_public=True, router=KEEPING
    )
    assert behind.verdict is Severity.WARN, "an address that looks public is none, if it is changed"
    assert judged(Reachability.YES) is Severity.PASS
    assert judged(Reachability.NO, is_public=True) is Severity.WARN
    assert judged(Reachability.UNKNOWN) is Severity.WARN
    assert judged(Reachability.UNKNOWN, is_public=True) is Severity.PASS


def test_rollouts_that_would_be_too_late_say_what_would_help() -> None:
    slow_link = replace(PROSPECT, late_versions=4, broadcast_s=20.0)
    slow_engine = replace(PROSPECT, late_versions=4, rollout_s=20.0)

    assert "line" in judge_prospect(slow_link, missing="").remedy
    assert "GPU" in judge_prospect(slow_engine, missing="").remedy
    assert judge_prospect(slow_link, missing="").verdict is Severity.WARN


def test_software_that_is_missing_fails_and_another_version_warns() -> None:
    good = Package(name="a", wanted=">=1", found="1.2", is_right=True)
    old = Package(name="b", wanted=">=2", found="1.0", is_right=False)
    gone = Package(name="c", wanted=">=2", found=None, is_right=False)

    assert judge_packages("3.11", [good], extra="x").verdict is Severity.PASS
    assert judge_packages("3.11", [good, old], extra="x").verdict is Severity.WARN
    missing = judge_packages("3.11", [good, old, gone], extra="x")
    assert missing.verdict is Severity.FAIL
    assert missing.remedy == install_extra("x")
    assert install_command() in judge_packages("3.11", [gone], extra="").remedy


def test_versions_are_compared_as_pip_does() -> None:
    versions = {"trio": "0.26.0"}
    found = _package("trio>=0.27", "", version_of=versions.__getitem__)
    assert found == Package(name="trio", wanted=">=0.27", found="0.26.0", is_right=False)
    assert _package('torch>=2.6; extra == "transformers"', "") is None
    assert _package("echo2swarm[x]", "") is None
    assert examine_software("transformers").verdict is Severity.PASS


def test_a_state_folder_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert examine_state_dir(tmp_path / "file" / "node").verdict is Severity.FAIL
    assert examine_state_dir(tmp_path / "new" / "node").verdict is Severity.PASS


def test_the_worst_finding_counts() -> None:
    assert worst_of([]) is Severity.PASS
    assert worst_of([judge_link(None, None, "x"), judge_state_dir("")]) is Severity.WARN
    assert worst_of([judge_state_dir("x"), judge_link(None, None, "x")]) is Severity.FAIL


@pytest.mark.parametrize(
    ("delay_s", "max_staleness", "late"),
    [(0.0, 2, 0), (1.0, 2, 1), (5.0, 2, 1), (5.1, 2, 2), (14.0, 2, 3), (5.0, 0, 0), (5.1, 0, 1)],
)
def test_lateness_is_counted_in_updates(delay_s: float, max_staleness: int, late: int) -> None:
    assert late_versions(delay_s, 5.0, max_staleness=max_staleness) == late


def status() -> StatusReply:
    found = next(m for m in MESSAGES["status"] if isinstance(m, StatusReply))
    assert isinstance(found.outlook, Outlook)
    return msgspec.structs.replace(
        found,
        train_s=5.0,
        rollouts_per_step=64,
        group_size=8,
        max_staleness=2,
        publish_every=1,
        outlook=msgspec.structs.replace(found.outlook, step_s=5.0, required_rollouts_per_s=10.0),
    )


def test_the_forecast_follows_link_and_engine() -> None:
    weights = PayloadRef(bytes(32), 10**9, 2**20, (FileRef("model.safetensors", 10**9),))
    manifest = msgspec.structs.replace(MANIFEST, weights=weights)

    def late(tokens_per_s: float, download: float) -> int:
        found = prospect_of(
            status(), manifest, tokens_per_s=tokens_per_s, download_bytes_per_s=download, load_s=0.5
        )
        assert found is not None
        assert found.rollouts_per_s == tokens_per_s / 8
        return found.late_versions

    assert late(1000.0, 1e9) == 1
    assert late(1000.0, 1e8) == 3
    assert late(6.4, 1e9) == 3
    assert (
        prospect_of(
            msgspec.structs.replace(status(), train_s=None),
            manifest,
            tokens_per_s=1.0,
            download_bytes_per_s=1.0,
            load_s=0.0,
        )
        is None
    )


def test_a_gpu_driver_is_known_by_its_device_file(tmp_path: Path) -> None:
    assert gpu_drivers(tmp_path) == []
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert gpu_drivers(tmp_path) == ["/dev/nvidiactl"]


@pytest.mark.parametrize(
    ("own_end", "seen_at", "router"),
    [
        ("/ip4/10.0.0.2/tcp/4151", "/ip4/10.0.0.2/tcp/4151", None),
        (
            "/ip4/10.0.0.2/tcp/4151",
            "/ip4/203.0.113.9/tcp/4151",
            Router(host="203.0.113.9", keeps_ports=True),
        ),
        (
            "/ip4/10.0.0.2/tcp/4151",
            "/ip4/203.0.113.9/tcp/4152",
            Router(host="203.0.113.9", keeps_ports=False),
        ),
        ("", "/ip4/203.0.113.9/tcp/4152", None),
        ("/ip4/10.0.0.2/tcp/4151", "", None),
        ("/ip4/10.0.0.2/tcp/4151", "/ip4/\x1b[2J/tcp/4151", None),
        ("/ip6/2001:db8::1/tcp/4151", "/ip6/2001:db8:0::1/tcp/9999", None),
    ],
)
def test_a_router_shows_where_an_address_was_changed(
    own_end: str, seen_at: str, router: Router | None
) -> None:
    assert router_between(own_end, seen_at) == router
