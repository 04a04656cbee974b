import tomllib
from pathlib import Path

import msgspec

from learner.config import LearnerConfig
from learner.demo.settings import DemoSettings, demo_config
from learner.demo.swarm import write_config


def settings(model: str) -> DemoSettings:
    return DemoSettings(
        folder=Path("x"), seed=7, num_steps=32, num_nodes=3, model=model, kill_one_node=False
    )


def test_the_configuration_survives_being_written_as_toml(tmp_path: Path) -> None:
    config = demo_config(settings("embedded"))
    path = tmp_path / "swarm.toml"

    write_config(config, path)

    read = msgspec.convert(tomllib.loads(path.read_text()), LearnerConfig)
    assert read == config


def test_the_seed_and_the_steps_are_the_users() -> None:
    config = demo_config(settings("embedded"))

    assert (config.run.seed, config.run.num_steps) == (7, 32)


def test_the_tiny_model_is_part_of_a_checkout() -> None:
    config = demo_config(settings("tiny"))

    assert (Path(config.model.path) / "config.json").is_file()
    assert config.task == {"kind": "sort_digits"}
