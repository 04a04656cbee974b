"""Prompts that no completion fits behind are noticed before the run begins."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from echo2swarm.system.errors import ConfigError
from learner.run.model_limits import check_lengths, longest_prompt
from protocols.leases import MAX_PROMPT_TOKENS

KEY = "rollouts.max_new_tokens"


def folder_with(folder: Path, config: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


def test_a_completion_longer_than_the_model_takes_is_refused_with_both_numbers(
    tmp_path: Path,
) -> None:
    folder = folder_with(tmp_path, {"max_position_embeddings": 64})

    with pytest.raises(ConfigError, match=r"^rollouts\.max_new_tokens: 256 .* takes 64 .* most 63"):
        longest_prompt(folder, max_new_tokens=256, key=KEY)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"max_position_embeddings": 64}, 54),
        ({"n_positions": 64}, 54),
        ({"text_config": {"max_position_embeddings": 64}}, 54),
        ({"max_position_embeddings": 10**9}, MAX_PROMPT_TOKENS),
        ({}, MAX_PROMPT_TOKENS),
    ],
)
def test_what_the_completion_leaves_is_for_the_prompt(
    tmp_path: Path, config: dict[str, object], most: int
) -> None:
    assert longest_prompt(folder_with(tmp_path, config), max_new_tokens=10, key=KEY) == most


def test_prompts_of_which_none_fits_are_refused_with_what_would() -> None:
    with pytest.raises(ConfigError, match=r"prompts of 20 to 30 .* 50 new .* takes 64 .* most 34$"):
        check_lengths([20, 30], most=14, max_new_tokens=50, key=KEY)


def test_prompts_of_which_some_fit_are_warned_of() -> None:
    with capture_logs() as logs:
        check_lengths([5, 20, 30], most=14, max_new_tokens=50, key=KEY)

    (entry,) = logs
    assert (entry["event"], entry["count"], entry["of"]) == ("prompts.too_long", 2, 3)


def test_prompts_that_fit_are_no_news() -> None:
    with capture_logs() as logs:
        check_lengths([5, 14], most=14, max_new_tokens=50, key=KEY)

    assert logs == []
