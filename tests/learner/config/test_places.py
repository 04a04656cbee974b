"""What a configuration names has to be there."""

from pathlib import Path

import pytest

from echo2swarm.system.errors import ConfigError
from learner.config.file import load_config
from learner.config.places import check_places
from tests.tiny_model import TINY_MODEL_DIR


def check(*overrides: str) -> None:
    check_places(load_config(None, overrides, environment={}))


def test_what_is_there_or_would_be_fetched_is_fine(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").touch()

    check("model.path=embedded")
    check("model.path=some/model")
    check(f"model.path={TINY_MODEL_DIR}")
    check("task.kind=jsonl", f"task.path={tmp_path}/q.jsonl")
    check("task.kind=function", "task.score=m:f", f"task.folder={tmp_path}")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ['swarm.advertise=["/dns4/nobody..here/tcp/4150"]'],
            'swarm.advertise: "/dns4/nobody..here/tcp/4150": this system does not know the name',
        ),
        (["model.path=/no/where"], "model.path: model folder /no/where does not exist"),
        (["model.path=nowhere"], "model.path: model folder nowhere does not exist"),
        (["model.path=/"], "model.path: model folder / has no config.json"),
        (["task.kind=jsonl", "task.path=/no/q"], "task.path: no such file: /no/q"),
        (["task.kind=jsonl", "task.path=/"], "task.path: no such file: /"),
        (
            ["task.kind=function", "task.score=m:f", "task.folder=/no"],
            "task.folder: no such folder: /no",
        ),
        (
            ["task.kind=function", "task.score=m:f", f"task.folder={__file__}"],
            f"task.folder: no such folder: {__file__}",
        ),
        (["task.kind=function", "task.score=m:f", "task.path=/no"], "task.path: no such file: /no"),
    ],
)
def test_what_is_missing_is_told_by_its_key(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(*overrides)

    assert str(caught.value).startswith(said)
