import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from echo2swarm.system.errors import UsageError
from learner.config import LearnerConfig
from learner.demo.settings import DemoSettings, demo_config, engine_of
from learner.demo.swarm import write_config


def settings(model: str, *, vllm_python: str | None = None) -> DemoSettings:
    return DemoSettings(
        folder=Path("x"),
        seed=7,
        num_steps=32,
        num_nodes=3,
        model=model,
        kill_one_node=False,
        vllm_python=vllm_python,
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


def test_the_first_node_alone_samples_with_vllm_where_there_is_one() -> None:
    mixed = settings("embedded", vllm_python=sys.executable)

    assert engine_of(mixed, is_first=True) == (
        "vllm",
        ("--engine-option", "threads=1", "--engine-option", f"python={sys.executable}"),
    )
    plain = ("transformers", ("--engine-option", "threads=1"))
    assert engine_of(mixed, is_first=False) == plain
    assert engine_of(settings("embedded"), is_first=True) == plain


@pytest.mark.parametrize(
    ("model", "python", "why"),
    [
        ("tiny", sys.executable, "no kernels for the tiny model"),
        ("embedded", "/nowhere/python", "no interpreter at /nowhere/python"),
    ],
)
def test_what_vllm_can_not_do_is_said_before_anything_starts(
    model: str, python: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        demo_config(settings(model, vllm_python=python))
