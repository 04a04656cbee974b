"""The trainer's process, run as the learner runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from echo2swarm.processes.parent import open_child
from echo2swarm.processes.wire import CallProgress
from echo2swarm.system.errors import ChildError
from learner.trainer.environment import num_trainer_threads
from learner.trainer.messages import (
    SaveCheckpoint,
    SavedCheckpoint,
    Started,
    Update,
    Updated,
    WriteWeights,
    WroteWeights,
)
from tests.learner.trainer.model_inputs import group, random_groups, rollout, start

# Each process imports torch and transformers, which takes long on a busy machine.
pytestmark = [pytest.mark.model, pytest.mark.processes]
MODULE = "learner.trainer.worker"
LIMIT_S = 120.0


async def test_a_trainer_process_trains_publishes_saves_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CallProgress] = []
    saved = str(tmp_path / "saved")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))

    async with open_child(MODULE, name="trainer") as child:
        started = await child.call(start(threads=1), Started, timeout_s=LIMIT_S)
        assert (started.step, started.vocab_size) == (0, 16)
        assert started.num_parameters == 93_504
        updated = await child.call(
            Update(step=0, groups=random_groups(0)),
            Updated,
            timeout_s=LIMIT_S,
            on_progress=seen.append,
        )
        assert updated.step == 1
        assert updated.metrics["grad_norm"] > 0
        assert seen
        wrote = await child.call(
            WriteWeights(folder=str(tmp_path / "v1")), WroteWeights, timeout_s=LIMIT_S
        )
        assert wrote == WroteWeights(files=("model.safetensors",), step=1)
        await child.call(SaveCheckpoint(folder=saved), SavedCheckpoint, timeout_s=LIMIT_S)

    async with open_child(MODULE, name="trainer") as child:
        call = start(threads=1, checkpoint_dir=saved)
        resumed = await child.call(call, Started, timeout_s=LIMIT_S)
        assert resumed.step == 1
        await child.call(
            WriteWeights(folder=str(tmp_path / "again")), WroteWeights, timeout_s=LIMIT_S
        )
    one, two = (tmp_path / name / "model.safetensors" for name in ("v1", "again"))
    assert one.read_bytes() == two.read_bytes()
    assert list(scratch.iterdir()) == []


async def test_a_refused_call_leaves_a_trainer_that_works(tmp_path: Path) -> None:
    bad = group(7, [1, 11], [rollout([1], [float("inf")], reward=1.0)])

    async with open_child(MODULE, name="trainer", log_path=tmp_path / "log") as child:
        with pytest.raises(ChildError, match="Update before Start"):
            await child.call(Update(step=0, groups=()), Updated, timeout_s=LIMIT_S)
        await child.call(start(threads=1), Started, timeout_s=LIMIT_S)
        with pytest.raises(ChildError, match=r"group 7, .*not finite"):
            await child.call(Update(step=0, groups=(bad,)), Updated, timeout_s=LIMIT_S)
        with pytest.raises(ChildError, match="started before"):
            await child.call(start(threads=1), Started, timeout_s=LIMIT_S)

        good = await child.call(Update(step=0, groups=random_groups(0)), Updated, timeout_s=LIMIT_S)

    assert good.step == 1
    assert "Loading weights" not in (tmp_path / "log").read_text()


async def test_a_sleeping_trainer_publishes_new_weights_each_step(tmp_path: Path) -> None:
    async with open_child(MODULE, name="trainer") as child:
        call = start(kind="sleep", train_s=0.01)
        started = await child.call(call, Started, timeout_s=LIMIT_S)
        assert started.num_parameters == 93_504
        for step in range(2):
            updated = await child.call(
                Update(step=step, groups=random_groups(0)), Updated, timeout_s=LIMIT_S
            )
            assert updated.metrics["reward_mean"] == 0.5
            wrote = await child.call(
                WriteWeights(folder=str(tmp_path / f"v{step}")), WroteWeights, timeout_s=LIMIT_S
            )
            assert wrote == WroteWeights(files=("model.safetensors",), step=step + 1)

    one, two = (load_file(tmp_path / f"v{step}" / "model.safetensors") for step in range(2))
    assert one.keys() == two.keys()
    num_changed = sum(int((one[name] != two[name]).sum()) for name in one)
    assert 500 < num_changed < 1500
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 0.1


def test_a_sleeping_trainer_needs_no_torch() -> None:
    code = (
        "import sys; from learner.trainer.worker import load_trainer; "
        "from learner.trainer.messages import Start; "
        "from tests.tiny_model import TINY_MODEL_DIR; "
        "t = load_trainer(Start(model_dir=str(TINY_MODEL_DIR), "
        "trainer={'kind': 'sleep', 'train_s': 0.001}, seed=0, temperature=1.0)); "
        "t.update(0, (), print); "
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_the_trainer_takes_half_the_cores(cores: int, threads: int) -> None:
    assert num_trainer_threads(cores) == threads
