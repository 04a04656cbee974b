"""The command line: what is typed wrongly is one line and status 2; and nothing heavy is loaded."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.system.errors import SwarmError, UsageError
from echo2swarm.system.identity import hold_identity
from echo2swarm.text.cli_errors import explain_error
from node.cli import node
from node.engine.options import SleepOptions, TransformersOptions, parse_options
from node.engine.process import engine_spec
from node.join_options import JoinOptions
from node.options import join_config
from protocols import ticket as ticket_protocol
from protocols.ids import peer_id_of
from protocols.ticket import Ticket
from tests.processes import children_of

DEAD_LEARNER = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)


def write_ticket(*, expires_unix_s: float | None = None) -> str:
    public = DEAD_LEARNER.public_key()
    expires = time.time() + 3600 if expires_unix_s is None else expires_unix_s
    return ticket_protocol.format_ticket(
        Ticket(
            run_id="run-1",
            learner_key=public.public_bytes_raw(),
            # Port 9, discard: nobody answers.
            addresses=(f"/ip4/127.0.0.1/tcp/9/p2p/{peer_id_of(public)}",),
            expires_unix_s=int(expires),
        ),
        DEAD_LEARNER,
    )


def failure_of(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(node, ["join", *arguments], standalone_mode=False)
    assert result.exception is not None
    ending = explain_error(result.exception)
    assert ending.bug is None
    assert "\n" not in ending.line
    return ending.status, ending.line


@pytest.mark.parametrize(
    ("ticket", "says"),
    [
        ("hello", "a ticket starts with"),
        (write_ticket()[:-20], "cut short"),
    ],
    ids=["no ticket", "cut short"],
)
def test_a_bad_ticket_is_a_usage_error(ticket: str, says: str) -> None:
    status, line = failure_of(ticket)

    assert status == 2
    assert says in line


def test_an_expired_ticket_is_a_usage_error_that_says_since_when(tmp_path: Path) -> None:
    status, line = failure_of(
        write_ticket(expires_unix_s=time.time() - 7200),
        *("--engine", "sleep", "--state-dir", str(tmp_path)),
    )

    assert status == 2
    assert "expired 2.0 h ago" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "vllm", "--engine-option", "python=/no/python"], "no interpreter at /no"),
        (["--engine", "sleep", "--engine-option", "speed=3"], "there are: rollouts_per_s"),
        (["--engine", "sleep", "--engine-option", "rollouts_per_s"], "NAME=VALUE"),
        (["--engine", "sleep", "--engine-option", "rollouts_per_s=0"], "rollouts_per_s"),
        (["--engine", "sleep", "--threads", "2"], "no engine option 'threads'"),
        (["--engine-option", "threads=x"], "engine option threads: Expected `int`"),
        (["--engine", "none"], "is not one of"),
        (["--price", "-1"], "--price"),
        (["--price", "nan"], "--price"),
        (["--device", "gpu"], "'gpu' is none of"),
        (["--listen", "nonsense"], "--listen 'nonsense'"),
        (["--advertise", "/ip4/1.2.3.4/tcp/70000"], "--advertise '/ip4/1.2.3.4/tcp/70000'"),
        (["--hours", "22-7"], "22:00-07:00"),
        (["--disk-gb", "0"], "--disk-gb"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_names_it(arguments: list[str], says: str) -> None:
    status, line = failure_of(write_ticket(), *arguments)

    assert status == 2
    assert says in line


def test_an_engine_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else name)

    with pytest.raises(SwarmError, match='install the extra "transformers": ') as caught:
        engine_spec("transformers", TransformersOptions())
    assert not isinstance(caught.value, UsageError)


def test_two_nodes_need_two_state_directories(tmp_path: Path) -> None:
    with hold_identity(tmp_path / "identity.key"):
        status, line = failure_of(write_ticket(), "--engine", "sleep", "--state-dir", str(tmp_path))

    assert status == 1
    assert "--state-dir" in line


def test_options_of_the_engine_come_from_both_kinds_of_flags() -> None:
    assert parse_options(
        TransformersOptions, ["threads=3", "device=cpu", "batch_tokens=100"]
    ) == TransformersOptions(threads=3, device="cpu", batch_tokens=100)
    assert parse_options(SleepOptions, ["rollouts_per_s=2.5"]) == SleepOptions(rollouts_per_s=2.5)


def test_what_was_not_said_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    config = join_config(JoinOptions(ticket=write_ticket(), engine="sleep"))

    assert config.state_dir.is_relative_to(tmp_path)
    assert config.name
    assert config.max_batch == 128


@pytest.mark.parametrize("arguments", [["--help"], ["join", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = f"""
import sys
from click.testing import CliRunner
from node.cli import node
result = CliRunner().invoke(node, {arguments!r})
assert result.exit_code == 0, result.output
heavy = {{"torch", "transformers", "libp2p", "trio", "numpy"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_node_itself_never_loads_torch() -> None:
    script = """
import sys
import node.app, node.options, echo2swarm.network.libp2p.network
heavy = {"torch", "transformers", "safetensors"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@contextmanager
def joined(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A node that looks for a learner that is not there."""
    command = [sys.executable, "-m", "node.cli", "join", write_ticket()]
    options = ["--engine", "sleep", "--state-dir", str(folder), "--log-format", "json"]
    with subprocess.Popen(
        [*command, *options, "--listen", "/ip4/127.0.0.1/tcp/0"],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: "subprocess.Popen[str]", event: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if f'"{event}"' in line:
            return line
    raise AssertionError(f"the node ended without {event}")


@pytest.mark.processes
def test_a_learner_that_is_down_is_one_clear_line_and_ctrl_c_ends_the_node(
    tmp_path: Path,
) -> None:
    with joined(tmp_path) as process:
        line = wait_for(process, "peer.unreachable")
        os.killpg(process.pid, signal.SIGINT)
        wait_for(process, "node.left")

        assert process.wait(timeout=60) == 0
    assert "/ip4/127.0.0.1/tcp/9" in line
    assert "Traceback" not in line


@pytest.mark.processes
def test_no_engine_outlives_a_node_that_was_killed(tmp_path: Path) -> None:
    with joined(tmp_path) as process:
        wait_for(process, "engine.ready")
        (engine,) = children_of(process.pid)
        process.kill()
        process.wait()

    deadline_s = time.monotonic() + 120
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not Path(f"/proc/{engine}").exists()
