"""The doctor on machines that are well and on such that aren't: real processes, real networks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from benchmarks.wan import Link, open_wan
from learner.config import LearnerConfig, SwarmConfig, TrainerConfig
from learner.demo.swarm import LocalSwarm, open_swarm
from node.doctor.findings import Finding, Severity
from protocols.status import StatusReply
from tests.e2e.swarms import JOIN_S, tiny_config
from tests.namespaces import internet, wan_name

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

MBIT = 1e6 / 8
Findings = dict[str, Finding]


def long_config(*, address: str = "127.0.0.1") -> LearnerConfig:
    """Return a run that goes on for as long as a test takes."""
    config = tiny_config(num_steps=4000, trainer=TrainerConfig(kind="sleep", train_s=5.0))
    listen = (f"/ip4/{address}/tcp/0",)
    return msgspec.structs.replace(config, swarm=SwarmConfig(listen=listen, heartbeat_s=0.5))


async def examine(
    swarm: LocalSwarm,
    *arguments: str,
    name: str = "doctor",
    module: Sequence[str] = ("node.cli",),
) -> tuple[int, Findings]:
    """Run ``echo2-node doctor`` and return its exit status and what it found."""
    folder = swarm.state_dir(name)
    rest = [*module[1:], "doctor", *arguments, "--json", "--state-dir", str(folder)]
    tool = await swarm.start_tool(module[0], rest, name=name)
    with trio.fail_after(240):
        status = await tool.wait()
    (line,) = [text for text in tool.log_path.read_text().splitlines() if text.startswith("[{")]
    findings = msgspec.json.decode(line, type=list[Finding])
    return status, {finding.name: finding for finding in findings}


def failures(findings: Findings) -> list[str]:
    return [name for name, finding in findings.items() if finding.verdict is Severity.FAIL]


def has_trained(status: StatusReply) -> bool:
    return status.learner_step >= 2 and status.train_s is not None


async def test_a_machine_that_is_well_is_told_what_the_run_would_have_of_it(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(long_config())
        ada = await swarm.start_node("ada", ticket)
        await swarm.wait_status(has_trained, timeout_s=JOIN_S, what="some updates")
        # As it is, before it has joined; then with the model that its node has fetched.
        status, before = await examine(swarm, ticket, "--engine", "sleep")
        present = swarm.status()
        ada.interrupt()
        with trio.fail_after(60):
            await ada.wait()
        # A folder of its own: the log of its node is no answer of the doctor's.
        shutil.copytree(swarm.state_dir("ada"), swarm.state_dir("again"), ignore=no_sockets)
        again, after = await examine(swarm, ticket, name="again")

    assert (status, failures(before)) == (0, [])
    for name in ("software", "state folder", "learner", "clock", "link", "disk", "engine"):
        assert before[name].verdict is Severity.PASS, before[name]
    assert "Mbit/s" in before["link"].text
    assert present is not None
    assert [node.name for node in present.nodes] == ["ada"], "it leaves no trace"
    assert before["forecast"].verdict is Severity.WARN
    assert (again, failures(after)) == (0, [])
    assert "of the run's model" in after["engine"].text
    assert after["forecast"].verdict is Severity.PASS, after["forecast"]
    assert "the bound is 2: useful" in after["forecast"].text


def no_sockets(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".sock")]


async def test_a_learner_that_is_gone_fails_with_what_to_do(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(long_config())
        swarm.learner.kill()
        await swarm.learner.wait()
        with trio.fail_after(120):
            status, findings = await examine(swarm, ticket, "--quick")

    assert (status, failures(findings)) == (1, ["learner"])
    assert "ask the run owner whether the learner runs" in findings["learner"].remedy
    # What the machine itself is like is told all the same.
    assert {"software", "state folder", "disk"} <= set(findings)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount an empty disk of 50 MB, or skip the test."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=50m", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk: needs root")
async def test_a_disk_without_room_fails_and_a_node_on_it_does_not_begin(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as small:
        async with open_swarm(tmp_path) as swarm:
            ticket = await swarm.start_learner(long_config())
            swarm.state_dir("doctor").parent.mkdir(exist_ok=True)
            swarm.state_dir("doctor").symlink_to(small)
            swarm.state_dir("ada").symlink_to(small)
            status, findings = await examine(swarm, ticket, "--quick")
            ada = await swarm.start_node("ada", ticket, engine="sleep")
            with trio.fail_after(120):
                joined = await ada.wait()
            said = ada.log_tail()[-1]

    assert (status, failures(findings)) == (1, ["disk"])
    assert "free" in findings["disk"].text
    assert "--state-dir" in findings["disk"].remedy
    assert joined == 1
    assert "disk: " in said
    assert "--state-dir" in said


@pytest.mark.parametrize(
    ("shift_s", "says"), [(3600, "ahead of"), (-3600, "behind")], ids=["ahead", "behind"]
)
async def test_a_clock_that_is_an_hour_off_is_named_and_stops_no_node(
    shift_s: int, says: str, tmp_path: Path
) -> None:
    shifted = ("tests.e2e.shifted_clock", str(shift_s), "node.cli")
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(long_config())
        status, findings = await examine(swarm, ticket, "--quick", module=shifted)
        join = ["join", ticket, "--engine", "sleep", "--name", "ada", "--state-dir"]
        await swarm.start_tool(
            shifted[0], [*shifted[1:], *join, str(swarm.state_dir("ada"))], name="ada"
        )
        trained = await swarm.wait_status(
            lambda s: s.learner_step >= 2,
            timeout_s=JOIN_S,
            what="updates by a node of another time",
        )

    assert (status, failures(findings)) == (0, [])
    assert findings["clock"].verdict is Severity.WARN
    assert f"{says} the learner's" in findings["clock"].text
    assert "1 h" in findings["clock"].text or "60 min" in findings["clock"].text
    assert "timedatectl set-ntp true" in findings["clock"].remedy
    assert trained.nodes[0].num_accepted > 0


@pytest.mark.parametrize(
    ("is_symmetric", "kind"),
    [(False, "keeps ports"), (True, "changes ports")],
    ids=["of the usual kind", "with a port for each connection"],
)
async def test_behind_a_router_it_says_so_and_of_which_kind_and_all_else_is_well(
    is_symmetric: bool, kind: str, tmp_path: Path
) -> None:
    with internet() as net:
        host, address = net.host()
        home = net.home(is_symmetric=is_symmetric)

        def space_of(name: str) -> list[str]:
            return ["ip", "netns", "exec", home if name == "doctor" else host]

        async with open_swarm(tmp_path, through=space_of) as swarm:
            ticket = await swarm.start_learner(long_config(address=address))
            status, findings = await examine(swarm, ticket, "--engine", "sleep")

    assert (status, failures(findings)) == (0, [])
    assert findings["reachable"].verdict is Severity.WARN
    assert "behind a router (10.1.0.2, seen as 203.0.113." in findings["reachable"].text
    assert f"the router {kind}" in findings["reachable"].text
    assert "docs/nat.md" in findings["reachable"].remedy
    assert findings["link"].verdict is Severity.PASS


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists(),
    reason="makes network namespaces: needs root, iproute2 and /dev/net/tun",
)
async def test_a_slow_line_is_measured_and_named(tmp_path: Path) -> None:
    fast, slow = (
        Link(up_mbit_per_s=100, down_mbit_per_s=100),
        Link(up_mbit_per_s=1, down_mbit_per_s=8),
    )
    with open_wan([fast, slow], name=wan_name("edoc")) as wan:

        def host_of(name: str) -> list[str]:
            return wan.command(1 if name == "doctor" else 0, [])

        async with open_swarm(tmp_path, through=host_of) as swarm:
            ticket = await swarm.start_learner(long_config(address=wan.address(0)))
            status, findings = await examine(swarm, ticket, "--engine", "sleep")

    assert (status, failures(findings)) == (0, [])
    link = findings["link"]
    assert link.verdict is Severity.WARN
    assert "slow" in link.remedy
    up, down = (float(word) for word in link.text.split() if word.replace(".", "").isdecimal())
    assert 0.3 < up < 2.0
    assert 2.0 < down < 16.0


def examine_alone(
    folder: Path, *arguments: str, through: Sequence[str] = (), python_path: str = ""
) -> tuple[int, Findings]:
    """Run ``echo2-node doctor`` without a run; return its exit status and what it found."""
    env = {**os.environ, "XDG_DATA_HOME": str(folder)}
    made = subprocess.run(
        [*through, sys.executable, "-m", "node.cli", "doctor", "--json", *arguments],
        env={**env, "PYTHONPATH": python_path} if python_path else env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert made.stdout, made.stderr
    findings = msgspec.json.decode(made.stdout, type=list[Finding])
    return made.returncode, {finding.name: finding for finding in findings}


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
def test_an_engine_that_finds_no_memory_fails_with_its_words_and_what_to_do(
    tmp_path: Path,
) -> None:
    # Enough for the doctor; not for torch.
    status, findings = examine_alone(tmp_path, through=["prlimit", "--as=500000000"])

    assert (status, failures(findings)) == (1, ["engine"])
    assert "died 2 times" in findings["engine"].text
    assert "its log" not in findings["engine"].text, "it is gone by now"
    assert "too little memory" in findings["engine"].remedy


def test_a_package_of_another_version_is_named_with_how_to_get_the_right_one(
    tmp_path: Path,
) -> None:
    fake = tmp_path / "site" / "cryptography-1.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: cryptography\nVersion: 1.0\n")
    status, findings = examine_alone(tmp_path, "--quick", python_path=str(fake.parent))

    assert (status, failures(findings)) == (0, [])
    assert findings["software"].verdict is Severity.WARN
    assert "cryptography 1.0 (wants " in findings["software"].text
    assert "pip" in findings["software"].remedy
