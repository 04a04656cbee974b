"""What is evaluated on is never trained on."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import ConfigError
from learner.tasks.base import PromptText
from learner.tasks.held_out import OtherPrompts, open_held_out
from learner.tasks.registry import open_task
from learner.tasks.splitting import EpochOrder, HeldOutBy, is_held_out, normalized, split
from learner.tasks.time_limit import TimeLimitError, call_within

BY: tuple[HeldOutBy, ...] = ("content", "position")
OLD_CHOICE = (13, 15, 24)
CHAIN_SUM = {
    "kind": "reasoning_gym",
    "dataset": "chain_sum",
    "dataset_options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "template": "few_shot",
}


ROWS = st.lists(st.text("abc ", max_size=3), min_size=1, max_size=60)


@given(rows=ROWS, share=st.floats(0, 0.9), seed=st.integers(0, 3), by=st.sampled_from(BY))
def test_every_item_is_either_trained_on_or_held_out_whatever_the_seed(
    rows: list[str], share: float, seed: int, by: HeldOutBy
) -> None:
    if by == "content" and all(is_held_out(normalized(row), share) for row in rows):
        with pytest.raises(ConfigError, match="all are held out"):
            split(rows, share=share, by=by)
        return
    trained = EpochOrder(split(rows, share=share, by=by), seed=seed)
    asked = {trained[i] for i in range(3 * len(trained))}
    if len(asked) < len(rows):
        held_out = trained.held_out()
        left_out = {held_out[i] for i in range(len(held_out))}
        assert not left_out & asked
        if by == "position":
            assert left_out | asked == set(range(len(rows)))
        else:
            assert {normalized(rows[i]) for i in left_out | asked} == set(map(normalized, rows))
        other = EpochOrder(split(rows, share=share, by=by), seed=seed + 1).held_out()
        assert {other[i] for i in range(len(other))} == left_out
    else:
        with pytest.raises(ConfigError, match=r"task.held_out_share: .* none is held out"):
            trained.held_out()


@given(rows=ROWS, more=ROWS, at=st.integers(0, 60), share=st.floats(0, 0.9))
def test_lines_that_are_added_move_no_line_between_training_and_evaluation(
    rows: list[str], more: list[str], at: int, share: float
) -> None:
    try:
        before = split(rows, share=share, by="content")
        after = split([*rows[:at], *more, *rows[at:]], share=share, by="content")
    except ConfigError:
        return  # nothing to train on
    longer = [*rows[:at], *more, *rows[at:]]
    old_held_out = {normalized(rows[i]) for i in before.held_out}
    new_held_out = {normalized(longer[i]) for i in after.held_out}

    assert old_held_out <= new_held_out
    assert not old_held_out & {normalized(longer[i]) for i in after.trained}
    assert not {normalized(rows[i]) for i in before.trained} & new_held_out


def test_about_the_share_is_held_out_and_what_is_there_twice_is_asked_once() -> None:
    rows = [f"question {i}" for i in range(2000)]

    found = split([*rows, *(f" {row}\n" for row in rows)], share=0.1, by="content")

    assert 150 < len(found.held_out) < 250
    assert len(found.trained) == 4000 - 2 * len(found.held_out)


def test_a_run_that_was_begun_by_older_software_holds_out_what_it_did() -> None:
    # As chosen by the version that knew nothing else.
    assert split(["x"] * 30, share=0.1, by="position").held_out == OLD_CHOICE


@pytest.fixture
def tables(tmp_path: Path) -> list[Mapping[str, Any]]:
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"{i} + 1?", "prompt": f"{i}", "answer": i + 1} for i in range(100)]
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


class Hanging(Numbers):
    """Its prompt 8 takes for ever."""

    def prompt(self, index: int) -> PromptText:
        if index == 8:
            time.sleep(60)
        return super().prompt(index)


def test_a_held_out_prompt_that_hangs_is_passed_over_after_its_time_limit() -> None:
    task = OtherPrompts(Hanging(), trained=Numbers(), num_trained=7)

    assert call_within(30, lambda: task.prompt(0)) == "7"
    with pytest.raises(TimeLimitError):
        call_within(0.05, lambda: task.prompt(1))
    assert call_within(30, lambda: task.prompt(1)) == "9"
