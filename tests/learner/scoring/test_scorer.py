"""Prompts and rewards, in this process."""

import json
from pathlib import Path
from typing import Any, Protocol

import pytest

from echo2swarm.system.errors import ConfigError
from learner.scoring.messages import CompletionToScore, Reward, ScoreFault, sha256_of_prompt, told
from learner.scoring.scorer import MAX_TEXT_CHARS, TaskScorer
from learner.scoring.tokenization import ModelTokenizer
from protocols.packed import pack_tokens, unpack_tokens
from tests.learner.scoring.byte_model import make_byte_model
from tests.tiny_model import TINY_MODEL_DIR

FUNCTION: dict[str, Any] = {
    "kind": "function",
    "score": "tests.learner.scoring.sample_verifier:score",
    "make_prompt": "tests.learner.scoring.sample_verifier:make_prompt",
    "stop": [";", "\n"],
    "score_limit_s": 1.0,
    "num_scorers": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scorer(model: Path) -> TaskScorer:
    return TaskScorer.open(FUNCTION, str(model), seed=5)


class ScoreTexts(Protocol):
    def __call__(self, *texts: str, index: int = 0) -> tuple[Reward, ...]: ...


@pytest.fixture
def score(scorer: TaskScorer, model: Path) -> ScoreTexts:
    tokenizer = ModelTokenizer(model)

    def of(*texts: str, index: int = 0) -> tuple[Reward, ...]:
        asked = sha256_of_prompt(scorer.draw(index, 1).prompts[0].tokens)
        completions = [
            CompletionToScore(index, pack_tokens(tokenizer.encode(t)[0]), asked) for t in texts
        ]
        rewards: list[Reward] = []
        while len(rewards) < len(completions):
            rewards += scorer.score(completions[len(rewards) :], lambda _: None).rewards
        return tuple(rewards)

    return of


def test_prompts_are_numbered_packed_and_shown(scorer: TaskScorer, model: Path) -> None:
    first, second = scorer.draw(3, 2).prompts

    assert (first.index, second.index) == (3, 4)
    assert first.text == "5/3"
    assert ModelTokenizer(model).decode(unpack_tokens(first.tokens)) == "5/3"


def test_the_task_is_described(scorer: TaskScorer) -> None:
    opened = scorer.describe()

    assert opened.num_prompts is None
    assert opened.vocab_size == 320
    assert opened.eos_token_id == 256
    assert len(opened.stop_token_ids) == 3


def test_a_completion_is_scored_against_its_own_prompt_up_to_the_stop_text(
    score: ScoreTexts,
) -> None:
    rewards = score("17; and\nmore", "17\nand; more", index=17)

    assert rewards == (Reward(1.0, "17"), Reward(1.0, "17"))
    assert score("17", index=18)[0].reward == 0.0


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ("raise", "ValueError: no such answer"),
        ("exit", "SystemExit: 3"),
        ("nan", "the verifier returned nan; a reward lies within 1e+06"),
        ("infinite", "the verifier returned inf; a reward lies within 1e+06"),
        ("huge", "the verifier returned 1.7e+308; a reward lies within 1e+06"),
        ("text", "ValueError: could not convert"),
        ("slow", "TimeLimitError: took longer than 1 s"),
        ("stubborn", "TimeLimitError: took longer than 1 s"),
    ],
)
def test_a_verifier_that_fails_costs_only_that_completion(
    score: ScoreTexts, completion: str, error: str
) -> None:
    before, failed, after = score("0", completion, "0")

    assert before.reward == after.reward == 1.0
    assert failed.reward is None
    assert failed.error.startswith(error)
    assert failed.text == completion


def test_an_answer_to_another_prompt_than_that_of_its_number_gets_no_reward(
    scorer: TaskScorer,
) -> None:
    right = scorer.draw(17, 1).prompts[0]
    answers = [CompletionToScore(17, b"", sha256_of_prompt(t)) for t in (right.tokens, b"another")]

    mine, others = scorer.score(answers, lambda _: None).rewards

    assert mine.reward == 0.0
    assert others.reward is None
    assert "prompt 17 is not the one that was asked" in others.error
    assert "'5/17'" in others.error


def test_prompts_that_are_made_anew_each_time_are_refused_when_the_task_is_opened(
    model: Path,
) -> None:
    moody = {"make_prompt": "tests.learner.scoring.sample_verifier:make_another_prompt"}

    with pytest.raises(ConfigError, match=r"another prompt of number 0 each time"):
        TaskScorer.open(FUNCTION | moody, str(model), seed=0).check()


def test_tokens_that_are_not_whole_cost_only_that_completion(scorer: TaskScorer) -> None:
    (reward,) = scorer.score([CompletionToScore(0, b"\0\0\0", b"")], lambda _: None).rewards

    assert reward.reward is None
    assert "4-byte" in reward.error


def test_the_text_kept_for_the_log_is_short(score: ScoreTexts) -> None:
    (reward,) = score("x" * 10_000)

    assert len(reward.text) == MAX_TEXT_CHARS


def test_progress_is_told_after_each_completion(scorer: TaskScorer) -> None:
    seen: list[int] = []

    scorer.score([CompletionToScore(0, b"", b"")] * 3, seen.append)

    assert seen == [1, 2, 3]


def test_a_task_whose_prompts_can_not_be_made_is_refused_when_it_is_opened(model: Path) -> None:
    with pytest.raises(ConfigError, match=r'no field "prumpt" \(task\.prompt_field\)'):
        TaskScorer.open(FUNCTION | {"prompt_field": "prumpt"}, str(model), seed=0).check()


def test_the_tiny_models_task_is_asked_and_scored_in_its_own_tokens() -> None:
    tiny = Path(__file__).parents[2] / "data" / "tiny-sorter"
    scorer = TaskScorer.open({"kind": "sort_digits"}, str(tiny), seed=0)
    (prompt,) = scorer.draw(0, 1).prompts
    eos = scorer.describe().eos_token_id
    assert eos is not None

    digits = unpack_tokens(prompt.tokens)[:3]
    asked = sha256_of_prompt(prompt.tokens)
    right = CompletionToScore(0, pack_tokens([*sorted(digits), eos]), asked)
    wrong = CompletionToScore(0, pack_tokens([*sorted(digits), 0, eos]), asked)

    assert len(unpack_tokens(prompt.tokens)) == len(prompt.text) == 4
    assert [r.reward for r in scorer.score([right, wrong], lambda _: None).rewards] == [1.0, 0.0]
    assert scorer.describe().stop_token_ids == (eos,)


def test_a_stop_text_that_the_model_can_t_write_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^task\.stop: 'x' would never stop anything"):
        TaskScorer.open({**FUNCTION, "stop": ["x"]}, str(TINY_MODEL_DIR), seed=5)


def test_a_default_stop_text_that_the_model_can_t_write_is_no_fault() -> None:
    TaskScorer.open({"kind": "arithmetic"}, str(TINY_MODEL_DIR), seed=5)


def test_the_verifier_sees_the_special_tokens_that_it_asks_for(tmp_path: Path) -> None:
    model = make_byte_model(tmp_path, special=["<answer>", "</answer>"])
    tokens = pack_tokens([257, *ModelTokenizer(model).encode("7")[0], 258])

    def text_with(**options: object) -> str:
        scorer = TaskScorer.open({**FUNCTION, **options}, str(model), seed=5)
        asked = sha256_of_prompt(scorer.draw(0, 1).prompts[0].tokens)
        (reward,) = scorer.score([CompletionToScore(0, tokens, asked)], lambda _: None).rewards
        return reward.text

    assert text_with() == "7"
    assert text_with(keep_special=["<answer>"]) == "<answer>7"
    assert text_with(keep_special=["<answer>", "</answer>"]) == "<answer>7</answer>"


def test_answers_between_tags_are_found_where_the_tags_are_special_tokens(tmp_path: Path) -> None:
    model = make_byte_model(tmp_path / "model", special=["<answer>", "</answer>"])
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "3 + 4?", "answer": "7"}\n')
    task = {
        "kind": "jsonl",
        "path": str(data),
        "template": "plain",
        "answer_in": "tags",
        "held_out_share": 0.0,
    }
    scorer = TaskScorer.open(task, str(model), seed=5)
    tokens = [257, *ModelTokenizer(model).encode("7")[0], 258]

    asked = sha256_of_prompt(scorer.draw(0, 1).prompts[0].tokens)
    (reward,) = scorer.score(
        [CompletionToScore(0, pack_tokens(tokens), asked)], lambda _: None
    ).rewards

    assert (reward.reward, reward.text) == (1.0, "<answer>7</answer>")


def test_a_prompt_that_can_not_be_made_is_left_out_and_named(model: Path) -> None:
    table = FUNCTION | {"make_prompt": "tests.learner.scoring.sample_verifier:make_most_prompts"}

    drawn = TaskScorer.open(table, str(model), seed=5).draw(5, 4)

    assert [prompt.index for prompt in drawn.prompts] == [5, 6, 8]
    (skipped,) = drawn.skipped
    assert skipped.index == 7
    assert skipped.error == "KeyError: 'no item 7'"
    assert skipped.where.startswith("sample_verifier.py, line ")
    assert told(skipped) == f"prompt 7, {skipped.where}: {skipped.error}"


def test_a_row_that_can_not_be_made_is_named_by_file_and_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    rows = [{"prompt": f"p{number}"} for number in range(20)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    table = {**FUNCTION, "make_prompt": None, "path": str(path), "held_out_share": 0.0}
    scorer = TaskScorer.open(table, str(model), seed=5)
    encode = scorer._tokenizer.encode

    def broken(prompt: object) -> tuple[list[int], str]:
        if prompt == "p12":
            raise ValueError("the template raises")
        return encode(prompt)  # type: ignore[arg-type]

    scorer._tokenizer.encode = broken  # type: ignore[method-assign]
    checked = scorer.check()

    assert len(checked.prompts) == 19
    assert [(each.where, each.error) for each in checked.skipped] == [
        (f"{path}, line 13", "ValueError: the template raises")
    ]
    assert scorer.describe(checked).num_skipped == 1
    assert scorer.describe(checked).num_checked == 20


def test_a_task_most_prompts_of_which_can_not_be_made_is_refused(model: Path) -> None:
    table = FUNCTION | {"make_prompt": "tests.learner.scoring.sample_verifier:make_no_prompt"}

    with pytest.raises(ConfigError, match=r"^32 of 32 prompts .* prompt 0, .*no item 0"):
        TaskScorer.open(table, str(model), seed=0).check()


def test_a_batch_ends_with_a_completion_that_takes_too_long(scorer: TaskScorer) -> None:
    tokens = scorer._tokenizer.encode
    (prompt,) = scorer.draw(0, 1).prompts
    texts = ("0", "slow", "0")
    sha256 = sha256_of_prompt(prompt.tokens)
    completions = [CompletionToScore(0, pack_tokens(tokens(text)[0]), sha256) for text in texts]

    rewards = scorer.score(completions, lambda _: None).rewards

    assert [reward.fault for reward in rewards] == [None, ScoreFault.TIMEOUT]
