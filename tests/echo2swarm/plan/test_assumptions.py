"""Assumptions: read strictly, explained, and never contradictory."""

from pathlib import Path

import pytest

from echo2swarm.plan.assumptions import EXAMPLE, example_assumptions, load_assumptions
from echo2swarm.system.errors import ConfigError

OFFER = '[[offer]]\nname = "x"\nrollouts_per_s = 1.0\nusd_per_hour = 0.5\n'


def loaded(tmp_path: Path, text: str) -> object:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return load_assumptions(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    return str(caught.value)


def test_the_example_says_what_it_shows(tmp_path: Path) -> None:
    assert loaded(tmp_path, example_assumptions()) == EXAMPLE


def test_every_key_of_the_example_is_explained() -> None:
    lines = example_assumptions().splitlines()
    first_offer_end = lines.index("[[offer]]", lines.index("[[offer]]") + 1)
    explained = [
        lines[i - 1].startswith("# ")
        for i, line in enumerate(lines[:first_offer_end])
        if " = " in line or line.endswith(" =")
    ]

    assert len(explained) > 30
    assert all(explained)


def test_a_file_may_say_little(tmp_path: Path) -> None:
    assert loaded(tmp_path, OFFER)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[learner]\ntrain_z = 1", "learner.train_z: no such key in [learner]"),
        ("[learner]\ntrain_s = 0", "learner.train_s"),
        ("[learner]\ntrain_s = nan", "learner.train_s"),
        ("[learner]\nusd_per_hour = -1", "learner.usd_per_hour"),
        ("[learner]\nupload_mbit = 0", "learner.upload_mbit"),
        ("[weights]\npayload_mb = inf", "weights.payload_mb"),
        ("[rollouts]\nrollout_s = 1\nrollout_p50_s = 2", "rollouts.rollout_p50_s: 2 is more"),
        ("[limits]\nmin_staleness = 9", "limits.min_staleness: 9 is more than max_staleness, 6"),
        ("[limits]\nmax_staleness = 1\npublish_every = 3", "wait for ever"),
        ("[limits]\nmax_nodes = 0", "limits.max_nodes"),
        (OFFER + OFFER, "'x' is the name of 2 offers"),
        (OFFER.replace("1.0", "0"), "rollouts_per_s"),
        (OFFER + "availability = 0", "availability"),
        (OFFER + "count = 0", "count"),
        ('[[offer]]\nname = "x"\nusd_per_hour = 1', "rollouts_per_s: must be set"),
        ("[central]\nusd_per_hour = 1.0", "central.rollouts_per_s: must be set"),
        ("[learner", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, text: str, complaint: str) -> None:
    message = refused(tmp_path, text)

    assert complaint in message
    assert message.startswith(str(tmp_path / "plan.toml"))
    assert "\n" not in message


def test_a_file_that_is_not_there_comes_with_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="swarm plan --example"):
        load_assumptions(tmp_path / "none.toml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_assumptions(path)
