"""What is evaluated on is never trained on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.errors import ConfigError
from learner.tasks.base import EpochOrder, PromptText
from learner.tasks.held_out import OtherPrompts, open_held_out
from learner.tasks.registry import open_task

CHAIN_SUM = {
    "kind": "reasoning_gym",
    "dataset": "chain_sum",
    "dataset_options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "template": "few_shot",
}


@given(num_items=st.integers(1, 60), share=st.floats(0, 0.9), seed=st.integers(0, 3))
def test_every_item_is_either_trained_on_or_held_out_whatever_the_seed(
    num_items: int, share: float, seed: int
) -> None:
    trained = EpochOrder(num_items, seed=seed, held_out_share=share)
    left_out = set(range(num_items)) - {trained[i] for i in range(3 * len(trained))}

    assert len(left_out) == int(share * num_items)
    if left_out:
        held_out = trained.held_out()
        assert {held_out[i] for i in range(len(held_out))} == left_out
        other = EpochOrder(num_items, seed=seed + 1, held_out_share=share).held_out()
        assert {other[i] for i in range(len(other))} == left_out
    else:
        with pytest.raises(ConfigError, match=r"task.held_out_share: .* none is held out"):
            trained.held_out()


@pytest.fixture
def tables(tmp_path: Path) -> list[Mapping[str, Any]]:
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"{i} + 1?", "prompt": f"{i}", "answer": i + 1} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return [
        {"kind": "arithmetic"},
        {"kind": "sort_digits"},
        {"kind": "jsonl", "path": str(path), "score": "exact"},
        {"kind": "function", "path": str(path), "score": "operator:eq"},
        # 81 x 2 sums of two digits: drawn again and again, so that there are doubles.
        CHAIN_SUM,
    ]


@pytest.mark.parametrize("number", range(5))
def test_no_held_out_prompt_is_among_those_trained_on_and_each_comes_once(
    tables: list[Mapping[str, Any]], number: int
) -> None:
    table = tables[number]
    num_trained = 100
    task, _ = open_task(table, seed=3)
    trained = {task.prompt(index) for index in range(task.num_prompts or num_trained)}

    held_out, options = open_held_out(table, seed=3, num_trained=num_trained)

    assert options.kind == table["kind"]
    prompts = [held_out.prompt(index) for index in range(held_out.num_prompts or 20)]
    assert len(prompts) >= 4
    assert len(set(prompts)) == len(prompts)
    assert not trained & set(prompts)
    again, _ = open_held_out(table, seed=3, num_trained=num_trained)
    assert [again.prompt(index) for index in range(len(prompts))] == prompts


class Numbers:
    """Prompts 0 to 9, for ever."""

    description, stop, num_prompts = "numbers", (), None

    def prompt(self, index: int) -> PromptText:
        return str(index % 10)

    def score(self, index: int, completion: str) -> float:
        return float(completion == str(index % 10))


def test_a_prompt_that_is_held_out_is_scored_as_itself() -> None:
    task = OtherPrompts(Numbers(), trained=Numbers(), num_trained=7)

    assert [task.prompt(index) for index in range(3)] == ["7", "8", "9"]
    assert task.score(1, "8") == 1.0
    with pytest.raises(ConfigError, match="no more than 3 prompts"):
        task.prompt(3)
