"""A run directory with checkpoints of the tiny model, made without a learner."""

from pathlib import Path

from learner.config import LearnerConfig
from learner.config import file as config_file
from learner.run.run_dir import RunDir, make_run_dir
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.worker import load_trainer
from tests.learner.trainer.model_inputs import random_groups, start
from tests.tiny_model import TINY_MODEL_DIR

CONFIG = f"""
[run]
name = "sorter"
num_steps = 4
[model]
path = "{TINY_MODEL_DIR}"
[task]
kind = "sort_digits"
[rollouts]
max_new_tokens = 4
[trainer]
device = "cpu"
compute_dtype = "float32"
threads = 1
"""


def make_run(folder: Path, *, num_steps: int) -> tuple[RunDir, PolicyTrainer]:
    """Make a run with a checkpoint after each step, and return its trainer too."""
    path = folder.with_suffix(".toml")
    path.write_text(CONFIG)
    config: LearnerConfig = config_file.load_config(path, environment={})
    run_dir = make_run_dir(folder, name=config.run.name)
    run_dir.config.write_text(config_file.resolved(config))
    trainer = load_trainer(start(threads=1))
    assert isinstance(trainer, PolicyTrainer)
    for step in range(num_steps):
        trainer.update(step, random_groups(step), lambda *_: None)
        trainer.copy_state()(run_dir.checkpoints.begin(step + 1))
        run_dir.checkpoints.complete(step + 1)
    return run_dir, trainer
