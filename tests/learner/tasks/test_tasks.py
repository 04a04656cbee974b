"""Every built-in kind: what it asks, how it scores, what it refuses."""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import ConfigError
from learner.tasks.base import Task, Turn
from learner.tasks.registry import check_table, open_task
from learner.tasks.splitting import EpochOrder, everything

CHAIN_SUM: dict[str, Any] = {
    "kind": "reasoning_gym",
    "dataset": "chain_sum",
    "dataset_options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "template": "few_shot",
    "example": "{expression} = {answer}",
    "answer_in": "first_line",
}


def opened(table: Mapping[str, Any], seed: int = 0) -> Task:
    task, _ = open_task(table, seed=seed)
    return task


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    rows = [
        {"question": "What is 1 + 1?", "answer": "It is two.\n#### 2", "level": "easy"},
        {"question": "Half of 1?", "answer": "#### \\frac{1}{2}", "level": "easy"},
        {"question": "A dozen?", "answer": "#### 12", "level": "hard"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


@given(num_items=st.integers(1, 50), seed=st.integers(0, 5), epoch=st.integers(0, 100))
def test_an_epoch_has_every_item_once(num_items: int, seed: int, epoch: int) -> None:
    order = EpochOrder(everything(num_items), seed=seed)

    items = [order[epoch * num_items + i] for i in range(num_items)]

    assert sorted(items) == list(range(num_items))


def test_epochs_and_seeds_differ_in_order_and_the_same_seed_does_not() -> None:
    def first(seed: int, epoch: int) -> list[int]:
        order = EpochOrder(everything(50), seed=seed)
        return [order[50 * epoch + i] for i in range(50)]

    assert first(0, 0) == first(0, 0)
    assert len({tuple(first(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_order_does_not_depend_on_what_was_asked_before() -> None:
    fresh, used = EpochOrder(everything(20), seed=1), EpochOrder(everything(20), seed=1)
    for index in random.Random(0).choices(range(200), k=50):
        used[index]

    assert [used[i] for i in range(100)] == [fresh[i] for i in range(100)]


@pytest.mark.parametrize("table", [{"kind": "arithmetic"}, {"kind": "sort_digits"}, CHAIN_SUM])
def test_prompts_follow_from_the_seed_alone(table: Mapping[str, Any]) -> None:
    def prompts(seed: int) -> list[object]:
        task = opened(table, seed)
        return [task.prompt(index) for index in (0, 7, 123_456)]

    assert prompts(3) == prompts(3)
    assert prompts(3) != prompts(4)


def solve(prompt: object) -> str:
    match = re.search(r"(\d+) ([+-]) (\d+) =$", str(prompt))
    assert match is not None
    a, sign, b = match.groups()
    return str(int(a) + int(b) if sign == "+" else int(a) - int(b))


@pytest.mark.parametrize("table", [{"kind": "arithmetic"}, CHAIN_SUM])
def test_sums_are_asked_behind_three_examples_and_scored_by_their_first_line(
    table: Mapping[str, Any],
) -> None:
    task = opened(table)
    for index in range(30):
        prompt = task.prompt(index)
        assert isinstance(prompt, str)
        assert re.fullmatch(r"(\d [+-] \d = -?\d+\n){3}\d [+-] \d =", prompt)
        answer = solve(prompt)
        assert task.score(index, f" {answer}") == 1.0
        assert task.score(index, f" {answer}\n9 + 9 = 18") == 1.0
        assert task.score(index, f" {int(answer) + 1}") < 1.0
        assert task.score(index, "") == 0.0
    assert task.stop == ("\n",)


def test_arithmetic_scores_nothing_but_the_exact_answer() -> None:
    task = opened({"kind": "arithmetic"})
    answer = solve(task.prompt(0))

    assert [
        task.score(0, text)
        for text in (f"{answer}.", f"0{answer}", f"{answer} or so", f"\n{answer}", f"= {answer}")
    ] == [0.0] * 5


def test_arithmetic_is_all_162_problems_of_one_digit() -> None:
    task = opened({"kind": "arithmetic", "held_out_share": 0})

    assert task.num_prompts == 162
    assert len({task.prompt(index) for index in range(162)}) == 162


def test_digits_are_scored_by_their_order() -> None:
    task = opened({"kind": "sort_digits", "held_out_share": 0})
    index = next(i for i in range(1000) if task.prompt(i) == "312=")

    assert task.score(index, "123") == 1.0
    assert [task.score(index, text) for text in ("132", "1233", "12", "", "123 ")] == [0.0] * 5


def test_generated_problems_go_on_without_end_and_without_repeating() -> None:
    # One that makes long problems, where chance repeats are rare.
    task = opened({"kind": "reasoning_gym", "dataset": "chain_sum", "template": "plain"})

    indices = [*range(50), *range(9_975, 10_025), 10**9]
    counts = Counter(task.prompt(index) for index in indices)

    assert task.num_prompts is None
    assert counts.most_common(1)[0][1] == 1


def test_a_data_set_scores_answers_its_own_way() -> None:
    task = opened({**CHAIN_SUM, "answer_in": "tags"})
    answer = solve(task.prompt(0))

    assert task.score(0, f"so <answer> {answer}.0 </answer>") == 1.0
    assert task.score(0, answer) == 0.0, "there are no tags"


def test_a_question_can_be_asked_as_a_chat_with_instructions() -> None:
    task = opened(
        {
            "kind": "reasoning_gym",
            "dataset": "chain_sum",
            "system": "Be brief.",
            "instruction": "Only the number.",
        }
    )

    prompt = task.prompt(0)

    assert isinstance(prompt, tuple)
    assert prompt[0] == Turn("system", "Be brief.")
    assert prompt[1].role == "user"
    assert prompt[1].content.endswith("=\nOnly the number.")
    assert task.stop == ()


def test_questions_of_a_file_are_scored_as_mathematics(jsonl: Path) -> None:
    task = opened({"kind": "jsonl", "path": str(jsonl), "answer_after": "####"})
    right = {"What is 1 + 1?": "\\boxed{2}", "Half of 1?": "It is $0.5$.", "A dozen?": "12"}

    asked = set()
    for index in range(3):
        prompt = task.prompt(index)
        assert isinstance(prompt, tuple)
        question = prompt[0].content
        asked.add(question)
        assert task.score(index, right[question]) == 1.0
        assert task.score(index, "The answer is 77.") == 0.0
        assert task.score(index, "no idea") == 0.0

    assert asked == set(right)
    assert task.num_prompts == 3


def test_questions_of_a_file_can_be_scored_as_text(jsonl: Path) -> None:
    task = opened(
        {
            "kind": "jsonl",
            "path": str(jsonl),
            "question_field": "answer",
            "answer_field": "level",
            "score": "exact",
            "answer_in": "last_line",
            "template": "plain",
        }
    )
    index = next(i for i in range(3) if task.prompt(i) == "#### 12")

    assert task.score(index, "let me see\n hard\n\n") == 1.0
    assert task.score(index, "hard to say") == 0.0


def test_the_first_lines_of_a_file_are_the_worked_examples_and_are_not_asked(jsonl: Path) -> None:
    task = opened(
        {
            "kind": "jsonl",
            "path": str(jsonl),
            "answer_after": "####",
            "template": "few_shot",
            "num_shots": 2,
            "example": "[{level}] {question} -> {answer}",
        }
    )

    assert task.num_prompts == 1
    assert task.prompt(0) == (
        "[easy] What is 1 + 1? -> 2\n[easy] Half of 1? -> \\frac{1}{2}\n[hard] A dozen? ->"
    )


def test_examples_of_several_lines_are_parted_by_an_empty_one(jsonl: Path) -> None:
    task = opened(
        {
            "kind": "jsonl",
            "path": str(jsonl),
            "answer_after": "####",
            "template": "few_shot",
            "num_shots": 1,
        }
    )

    prompt = task.prompt(0)

    assert isinstance(prompt, str)
    assert prompt.startswith("Question: What is 1 + 1?\nAnswer: 2\n\nQuestion: ")
    assert prompt.endswith("\nAnswer:")
    assert task.stop == ("\n\n",)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("72", "so it is 72.", "so it is 71."),
        ("1,000", "$1000$", "$100$"),
        ("\\frac12", "\\boxed{0.5}", "\\boxed{2}"),
        ("3, 4", "$4, 3$", "$4$"),
        ("x^2 + 2x + 1", "$(x+1)^2$", "$(x-1)^2$"),
        ("The sum is $7$", "7", "8"),
        ("5 apples", "5 apples", "6 apples"),
    ],
)
def test_mathematics_is_compared_by_what_it_means(
    tmp_path: Path, answer: str, right: str, wrong: str
) -> None:
    path = tmp_path / "f"
    path.write_text(json.dumps({"question": "q", "answer": answer}))
    task = opened({"kind": "jsonl", "path": str(path)})

    assert task.score(0, right) == 1.0
    assert task.score(0, wrong) == 0.0


def test_a_right_answer_that_is_no_mathematics_is_an_error_and_no_wrong_answer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "f"
    path.write_text('{"question": "q", "answer": "!!"}\n')
    task = opened({"kind": "jsonl", "path": str(path)})

    with pytest.raises(ValueError, match="can't read the right answer '!!'"):
        task.score(0, "1")


def test_a_function_scores_items_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "my_verifier.py").write_text("def score(text, item): return len(text) * item['x']")
    (tmp_path / "items.jsonl").write_text(
        '{"prompt": "plain", "x": 1}\n{"prompt": [{"role": "user", "content": "hi"}], "x": 2}\n'
    )
    task = opened(
        {
            "kind": "function",
            "score": "my_verifier:score",
            "folder": str(tmp_path),
            "path": str(tmp_path / "items.jsonl"),
            "held_out_share": 0,
        }
    )

    scores = {task.prompt(i): task.score(i, "abc") for i in range(2)}

    assert scores == {"plain": 3.0, (Turn("user", "hi"),): 6.0}
    assert task.num_prompts == 2


CHAT = '[{"role": "user", "content": "1 + 1?"}]'


def rows_file(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_a_question_that_is_a_chat_is_asked_as_one(tmp_path: Path) -> None:
    path = rows_file(tmp_path, f'{{"question": {CHAT}, "answer": 2}}\n')
    table = {"kind": "jsonl", "path": path, "held_out_share": 0}

    plain = opened(table)
    more = opened(table | {"system": "Be brief.", "instruction": "Think."})

    assert plain.prompt(0) == (Turn("user", "1 + 1?"),)
    assert more.prompt(0) == (Turn("system", "Be brief."), Turn("user", "1 + 1?\nThink."))
    assert plain.score(0, "2") == 1.0
    with pytest.raises(ConfigError, match=r'line 1: field "question" .* must be "chat", not "pl'):
        opened(table | {"template": "plain"})


def test_a_chat_keeps_its_own_system_message_and_is_instructed_at_its_end(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "Mine."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "3"},
    ]
    path = rows_file(tmp_path, json.dumps({"question": chat, "answer": 2}))
    table = {"kind": "jsonl", "path": path, "held_out_share": 0}

    prompt = opened(table | {"system": "Yours.", "instruction": "Again."}).prompt(0)

    assert prompt == (*(Turn(t["role"], t["content"]) for t in chat), Turn("user", "Again."))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": null, "answer": 1}', 'field "question" (task.question_field): expected'),
        ('{"question": 7, "answer": 1}', 'field "question" (task.question_field): expected'),
        ('{"question": " ", "answer": 1}', 'field "question" (task.question_field): expected'),
        ('{"question": [], "answer": 1}', 'field "question" (task.question_field): expected'),
        ('{"question": [{"role": "user"}], "answer": 1}', 'field "question" (task.question_fi'),
        ('{"question": "q", "answer": null}', 'field "answer" (task.answer_field): expected'),
        ('{"question": "q", "answer": ["1", "2"]}', 'field "answer" (task.answer_field): exp'),
        ('{"question": "q", "answer": {"x": 1}}', 'field "answer" (task.answer_field): expec'),
        ('{"question": "q", "answer": true}', 'field "answer" (task.answer_field): expected'),
        ('{"question": "q", "answer": ""}', 'field "answer" (task.answer_field): expected'),
        ('{"question": "q\\ud800", "answer": 1}', "not a JSON object: half of a pair of surro"),
        ('{"question": "q", "answer": 1}\0', "not a JSON object"),
        ('{"question": ' + "[" * 9000, "too deeply nested"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_file_line_and_field(
    tmp_path: Path, row: str, message: str
) -> None:
    path = rows_file(tmp_path, '{"question": "q", "answer": 1}\n' * 200 + row + "\n")

    with pytest.raises(ConfigError) as caught:
        opened({"kind": "jsonl", "path": path})

    assert str(caught.value).startswith(f"{path}, line 201: {message}")
    assert len(str(caught.value)) < 300 + len(path)


@pytest.mark.parametrize("value", ["7", "null", '""', "[1]", '[{"role": "user"}]'])
def test_an_item_whose_prompt_is_neither_text_nor_a_chat_is_refused_at_the_start(
    tmp_path: Path, value: str
) -> None:
    path = rows_file(tmp_path, f'{{"prompt": "good"}}\n{{"prompt": {value}}}\n')

    with pytest.raises(ConfigError, match=r'line 2: field "prompt" \(task\.prompt_field\): exp'):
        opened({"kind": "function", "score": SCORE, "path": path})


def test_a_byte_order_mark_and_line_ends_of_other_systems_are_no_part_of_the_data(
    tmp_path: Path,
) -> None:
    line = '{"question": "q", "answer": 1}\r\n'
    path = rows_file(tmp_path, b"\xef\xbb\xbf" + line.encode() * 3)

    assert opened({"kind": "jsonl", "path": path, "held_out_share": 0}).num_prompts == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_data_in_another_encoding_is_refused_with_what_to_do(tmp_path: Path, encoding: str) -> None:
    path = rows_file(tmp_path, '{"question": "q", "answer": 1}\n'.encode(encoding))

    with pytest.raises(ConfigError, match=r"rows\.jsonl: it .*; save it in UTF-8$"):
        opened({"kind": "jsonl", "path": path})


SCORE = "tests.learner.scoring.sample_verifier:score"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "task.kind: must be set"),
        ({"kind": "sort_digit"}, 'task.kind: no "sort_digit"; did you mean "sort_digits"?'),
        (
            CHAIN_SUM | {"dataset": "chain_sums"},
            'task.dataset: reasoning-gym has no "chain_sums"; did you mean "chain_sum"?',
        ),
        (
            CHAIN_SUM | {"dataset_options": {"max_term": 2}},
            'task.dataset_options: chain_sum has no "max_term"; did you mean "max_terms"?',
        ),
        (
            CHAIN_SUM | {"dataset_options": {"max_terms": 0}},
            "task.dataset_options: chain_sum: max_terms must be",
        ),
        (CHAIN_SUM | {"dataset_options": {"seed": 1}}, 'task.dataset_options: chain_sum has no "s'),
        (
            CHAIN_SUM | {"example": "{expresion} = {answer}"},
            'task.example: the data has no field "expresion"; did you mean "expression"?',
        ),
        (CHAIN_SUM | {"example": "{expression}"}, "task.example must end with {answer}"),
        (CHAIN_SUM | {"example": "{ = {answer}"}, "task.example: "),
        ({"kind": "jsonl"}, "task.path: must be set"),
        ({"kind": "jsonl", "path": "DIR/none"}, "task.path: can't read "),
        ({"kind": "jsonl", "path": "DIR/bad"}, "DIR/bad, line 3: not a JSON object"),
        ({"kind": "jsonl", "path": "DIR/empty"}, "task.path: DIR/empty has no lines"),
        (
            {"kind": "jsonl", "path": "DIR/good", "question_field": "questions"},
            'DIR/good, line 1: no field "questions" (task.question_field); did you mean "question"',
        ),
        (
            {"kind": "jsonl", "path": "DIR/good", "answer_after": "####"},
            "DIR/good, line 1: its answer does not contain '####' (task.answer_after)",
        ),
        (
            {"kind": "jsonl", "path": "DIR/good", "template": "few_shot"},
            "task.path: DIR/good has 2 lines, and the first 3 are worked examples",
        ),
        (
            {"kind": "function", "score": "score"},
            'task.score: expected "module:function", such as "haiku:score", got "score"',
        ),
        ({"kind": "function", "score": SCORE}, 'task.kind = "function" needs either'),
        (
            {"kind": "function", "score": "nowhere_at_all:f", "path": "DIR/good"},
            'task.score: no module "nowhere_at_all" in task.folder',
        ),
        (
            {"kind": "function", "score": SCORE[:-1], "path": "DIR/good"},
            "task.score: module tests.learner.scoring.sample_verifier has no function "
            '"scor"; did you mean "score"?',
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_what_to_change(
    tmp_path: Path, table: dict[str, Any], message: str
) -> None:
    (tmp_path / "good").write_text('{"question": "q", "answer": 1}\n' * 2)
    (tmp_path / "bad").write_text('{"question": "q", "answer": 1}\n\n[]\n')
    (tmp_path / "empty").write_text("\n")
    if "path" in table:
        table = table | {"path": table["path"].replace("DIR", str(tmp_path))}

    with pytest.raises(ConfigError) as caught:
        opened(table)

    assert str(caught.value).startswith(message.replace("DIR", str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_checking_a_table_fills_in_the_defaults_and_runs_no_code_of_others() -> None:
    table = {"kind": "function", "score": "nowhere_at_all:f", "path": "x"}

    checked = check_table(table)

    assert checked["score_limit_s"] == 2.0
    assert checked["score"] == "nowhere_at_all:f"


def test_an_installed_package_can_bring_a_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shout_task.py").write_text(
        "from learner.tasks.base import TaskOptions\n"
        "class Options(TaskOptions, frozen=True, kw_only=True):\n"
        "    word: str\n"
        "class Shout:\n"
        "    description, num_prompts, stop = 'shout', None, ()\n"
        "    def __init__(self, word): self.word = word\n"
        "    def prompt(self, index): return self.word\n"
        "    def score(self, index, completion): return float(completion == self.word.upper())\n"
        "def open_task(options, *, seed): return Shout(options.word)\n"
    )
    metadata = tmp_path / "shout-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shout\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[echo2swarm.tasks]\nshout = shout_task\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert check_table({"kind": "shout", "wrod": "ho"}) == {"kind": "shout", "wrod": "ho"}
    assert "shout_task" not in sys.modules
    assert opened({"kind": "shout", "word": "ho"}).score(0, "HO") == 1.0
    with pytest.raises(
        ConfigError, match=r'task\.wrod: no such key in .* of kind "shout"; did you mean "word"'
    ):
        opened({"kind": "shout", "wrod": "ho"})
    with pytest.raises(ConfigError, match='no "shut"; did you mean "shout"'):
        check_table({"kind": "shut"})
