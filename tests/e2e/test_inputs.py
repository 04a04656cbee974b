"""A run whose data changes under it: refused in one line, unless the change is accepted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_model import TINY_MODEL_DIR

pytestmark = pytest.mark.processes
START_S = 240.0

CONFIG = f"""\
[run]
num_steps = 5
[model]
path = "{TINY_MODEL_DIR}"
[task]
kind = "jsonl"
path = "rows.jsonl"
score = "exact"
template = "plain"
held_out_share = 0.0
[swarm]
listen = ["/ip4/127.0.0.1/tcp/0"]
[rollouts]
max_new_tokens = 6
[trainer]
threads = 1
"""


def serve(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a learner, and stop it as soon as it has a ticket; returns its status and its words."""
    with subprocess.Popen(
        [sys.executable, "-m", "learner.cli", "serve", "--run-dir", "run", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as learner:
        try:
            assert learner.stdout is not None
            if learner.stdout.readline():
                learner.send_signal(signal.SIGINT)
            _, said = learner.communicate(timeout=START_S)
        finally:
            learner.kill()
    return learner.returncode, said


def test_a_run_is_resumed_with_the_data_that_it_began_with_or_with_what_is_accepted(
    tmp_path: Path,
) -> None:
    data = tmp_path / "rows.jsonl"
    rows = "".join(f'{{"question": "{i}21=", "answer": "12{i}"}}\n' for i in range(3, 9))
    data.write_text(rows)
    (tmp_path / "run.toml").write_text(CONFIG)
    assert serve(tmp_path, "run.toml")[0] == 130
    before = (tmp_path / "run" / "inputs.json").read_bytes()

    data.write_text('{"question": "921=", "answer": "129"}\n' + rows)
    status, said = serve(tmp_path, "--resume")

    last = said.strip().splitlines()[-1]
    assert status == 2
    assert last.startswith(f"echo2-learner: task.path: {data} has changed (SHA-256 ")
    assert "--accept-changed-inputs" in last
    assert (tmp_path / "run" / "inputs.json").read_bytes() == before

    assert serve(tmp_path, "--resume", "--accept-changed-inputs")[0] == 130
    assert serve(tmp_path, "--resume")[0] == 130
