"""The model's tokenizer as prompts and completions need it."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.system.errors import ConfigError
from learner.scoring.tokenization import ModelTokenizer
from learner.tasks.base import Turn
from protocols.sampling import MAX_STOP_TOKENS
from tests.learner.scoring.byte_model import make_byte_model
from tests.tiny_model import TINY_MODEL_DIR


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return ModelTokenizer(folder)


@given(text=st.text(st.characters(exclude_categories=["Cs"])).filter(lambda t: "<eos>" not in t))
def test_a_prompt_is_encoded_whole_and_decodes_to_itself(
    tokenizer: ModelTokenizer, text: str
) -> None:
    tokens, shown = tokenizer.encode(text)

    assert shown == text
    assert len(tokens) == len(text.encode())
    assert tokenizer.decode(tokens) == text


def test_the_end_of_a_completion_is_not_part_of_its_text(tokenizer: ModelTokenizer) -> None:
    tokens, _ = tokenizer.encode("7")

    assert tokenizer.decode([*tokens, 256]) == "7"


def test_a_token_that_the_tokenizer_does_not_know_has_no_text(tokenizer: ModelTokenizer) -> None:
    # Models have more outputs than their tokenizers have words.
    assert tokenizer.decode([319, 2**32 - 1]) == ""


def test_the_vocabulary_is_that_of_the_model(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.vocab_size == 320


def test_sampling_stops_at_the_end_of_sequence_and_at_every_token_with_a_stop_text(
    tokenizer: ModelTokenizer,
) -> None:
    newline, question = (tokenizer.encode(text)[0][0] for text in ("\n", "?"))

    assert tokenizer.stop_token_ids(()) == (256,)
    assert set(tokenizer.stop_token_ids(("\n",))) == {256, newline}
    assert set(tokenizer.stop_token_ids(("\n", "?"))) == {256, newline, question}


def test_a_stop_text_of_several_tokens_is_none_to_stop_sampling_at(
    tokenizer: ModelTokenizer,
) -> None:
    assert tokenizer.stop_token_ids(("</answer>",)) == (256,)


def test_stop_tokens_are_as_many_as_a_lease_can_name_and_the_end_is_among_them(
    tokenizer: ModelTokenizer,
) -> None:
    stop = tuple(map(chr, range(33, 127)))

    found = tokenizer.stop_token_ids(stop)

    assert len(found) == MAX_STOP_TOKENS
    assert found[0] == 256


def test_a_chat_is_rendered_with_the_models_own_template(tokenizer: ModelTokenizer) -> None:
    tokens, text = tokenizer.encode((Turn("system", "Be brief."), Turn("user", "2 + 2?")))

    assert text == "[system] Be brief.\n[user] 2 + 2?\n[assistant]"
    assert tokenizer.decode(tokens) == text


def test_a_template_with_the_date_makes_the_same_prompt_on_every_day(tmp_path: Path) -> None:
    folder = make_byte_model(tmp_path)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_bytes())
    config["chat_template"] = "Today: {{ strftime_now('%d %b %Y') }}. " + config["chat_template"]
    path.write_text(json.dumps(config))

    _, text = ModelTokenizer(folder).encode((Turn("user", "hello"),))

    assert text == "Today: 26 Jul 2024. [user] hello\n[assistant]"


def test_a_chat_for_a_model_without_template_is_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    tokenizer = ModelTokenizer(make_byte_model(tmp_path, with_chat=False))

    with pytest.raises(ConfigError, match=r"no chat template: set task\.template"):
        tokenizer.encode((Turn("user", "hello"),))


def test_a_folder_without_tokenizer_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path} has no tokenizer\.json"):
        ModelTokenizer(tmp_path)


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, (7, 8, 9, 256)),
        ({"eos_token_id": 14}, {}, (14, 256)),
        ({}, {"eos_token_id": 9}, (9, 256)),
        ({}, {"eos_token_id": None}, (256,)),
        ({"eos_token_id": [256, 7]}, {"eos_token_id": 7}, (256, 7)),
        ({"eos_token_id": -1}, {"eos_token_id": True}, (256,)),
        ({}, {"text_config": {"eos_token_id": 9}}, (9, 256)),
        ({"eos_token_id": [256, 999]}, {"vocab_size": 320}, (256,)),
    ],
)
def test_a_sequence_ends_with_whatever_generation_model_or_tokenizer_say(
    tmp_path: Path, generation: object, model: object, expected: tuple[int, ...]
) -> None:
    assert with_ends(tmp_path, generation, model).eos_token_ids == expected


def with_ends(folder: Path, generation: object, model: object) -> ModelTokenizer:
    make_byte_model(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps(model))
    return ModelTokenizer(folder)


@pytest.mark.parametrize(
    ("generation", "model", "warning"),
    [
        ({"eos_token_id": 14}, {}, r"generation_config\.json: \[14\], tokenizer_config\.json: \["),
        ({}, {"eos_token_id": 9}, r"config\.json: \[9\]"),
        ({"eos_token_id": [256, 999]}, {"vocab_size": 320}, r"\[999\] are beyond .* of 320"),
    ],
)
def test_files_that_name_different_ends_are_warned_of(
    tmp_path: Path, generation: object, model: object, warning: str
) -> None:
    (found,) = with_ends(tmp_path, generation, model).warnings

    assert re.search(warning, found)


def test_a_file_that_names_some_of_the_ends_contradicts_nothing(tmp_path: Path) -> None:
    assert with_ends(tmp_path, {"eos_token_id": [7, 256]}, {"eos_token_id": 7}).warnings == ()


IM_END, ANSWER = 257, (258, 259)


@pytest.fixture
def chatty(tmp_path: Path) -> ModelTokenizer:
    """Return a tokenizer with special tokens for the end of a turn, and for answers."""
    return ModelTokenizer(
        make_byte_model(tmp_path, special=["<|im_end|>", "<answer>", "</answer>"])
    )


def test_a_stop_text_that_is_a_special_token_stops_and_cuts(chatty: ModelTokenizer) -> None:
    seven, eight = (chatty.encode(text)[0][0] for text in "78")
    stop = ("<|im_end|>",)

    assert chatty.stop_token_ids(stop) == (256, IM_END)
    assert chatty.completion_text([seven, IM_END, eight], stop=stop) == "7"


def test_a_stop_text_with_a_special_token_inside_cuts_where_it_is_written(
    chatty: ModelTokenizer,
) -> None:
    seven, newline = (chatty.encode(text)[0][0] for text in "7\n")
    stop = ("<|im_end|>\n",)

    text = chatty.completion_text([seven, IM_END, seven, IM_END, newline, seven], stop=stop)

    assert text == "77"


def test_part_of_a_special_token_s_name_is_no_stop(chatty: ModelTokenizer) -> None:
    seven = chatty.encode("7")[0][0]

    assert chatty.stop_token_ids(("im_end",)) == (256,)
    assert chatty.completion_text([seven, IM_END, seven], stop=("im_end",)) == "77"


def test_special_tokens_stay_in_the_text_where_that_is_asked_for(chatty: ModelTokenizer) -> None:
    seven = chatty.encode("7")[0][0]
    tokens = [ANSWER[0], seven, ANSWER[1], IM_END, seven, 256]

    assert chatty.completion_text(tokens) == "77"
    assert chatty.completion_text(tokens, kept=("<answer>", "</answer>")) == "<answer>7</answer>7"
    assert (
        chatty.completion_text(tokens, kept=("<answer>", "</answer>"), stop=("</answer>",))
        == "<answer>7"
    )


@pytest.mark.parametrize(
    "text", ["\n", "\n\n", " 7", "</answer>", "<|im_end|>", "<|im_end|>\n", "é"]
)
def test_a_text_that_survives_the_tokenizer_can_be_written(
    chatty: ModelTokenizer, text: str
) -> None:
    assert chatty.can_write(text)


@pytest.mark.parametrize(
    ("text", "can"), [("=", True), ("7=", True), ("x", False), ("<eos>", True)]
)
def test_a_text_of_characters_without_tokens_can_not_be_written(text: str, can: bool) -> None:
    assert ModelTokenizer(TINY_MODEL_DIR).can_write(text) is can


def test_tokens_beyond_the_model_s_vocabulary_are_refused_with_numbers(tmp_path: Path) -> None:
    make_byte_model(tmp_path, special=["<pad>", "<tool>"])
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 257}))

    with pytest.raises(
        ConfigError, match=r"2 tokens .* vocabulary of 257 \(the first: '<pad>', 257"
    ):
        ModelTokenizer(tmp_path).check_vocabulary()


def test_a_vocabulary_larger_than_the_tokenizer_is_as_usual(tokenizer: ModelTokenizer) -> None:
    tokenizer.check_vocabulary()
