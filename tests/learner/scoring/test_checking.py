"""What of a task can be seen before a run begins is said before a run begins."""

import json
from pathlib import Path
from typing import Any

import pytest

from echo2swarm.system.errors import ConfigError
from learner.scoring.checking import check_task
from learner.tasks.jsonl import Jsonl
from learner.tasks.registry import open_task


def table(path: Path, answers: list[object], **more: object) -> dict[str, Any]:
    rows = [{"question": f"number {i}?", "answer": a} for i, a in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "jsonl", "path": str(path), **more}


def opened(task: dict[str, Any]) -> Jsonl:
    found, _ = open_task(task, seed=0)
    assert isinstance(found, Jsonl)
    return found


def test_right_answers_that_the_verifier_can_not_read_are_named_by_their_first_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    task = table(path, [1, "\\frac{1}{2}", "??", 3, "!!", "??"])

    with pytest.raises(ConfigError) as caught:
        opened(task).check_answers(limit_s=60)

    assert str(caught.value).startswith(
        f"{path}, line 3: the verifier can't read the answer '??' (task.answer_field) as "
        "mathematics (and 1 more); "
    )
    assert opened({**task, "score": "exact"}).check_answers(limit_s=60) == (0, 0)


def test_each_answer_is_looked_at_once_and_only_as_many_as_there_is_time_for(
    tmp_path: Path,
) -> None:
    task = opened(table(tmp_path / "rows.jsonl", [*range(50), *range(50)]))

    assert task.check_answers(limit_s=60) == (50, 50)
    assert task.check_answers(limit_s=0) == (1, 50)


@pytest.mark.processes
async def test_a_task_is_checked_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    await check_task(table(path, [1, 2]), seed=0)
    with pytest.raises(ConfigError, match=r"^\S+rows\.jsonl, line 2: the verifier can't read"):
        await check_task(table(path, [1, "!!"]), seed=0)
    with pytest.raises(
        ConfigError, match=r'^task\.dataset: reasoning-gym has no "chain_sums"; did'
    ):
        await check_task({"kind": "reasoning_gym", "dataset": "chain_sums"}, seed=0)
