"""The model's tokenizer as prompts and completions need it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.errors import ConfigError
from learner.scoring.tokenization import ModelTokenizer
from learner.tasks.base import Turn
from protocols.sampling import MAX_STOP_TOKENS
from tests.learner.scoring.byte_model import make_byte_model


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
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, (7, 8)),
        ({"eos_token_id": 7}, {}, (7,)),
        ({}, {"eos_token_id": 9}, (9,)),
        ({}, {"eos_token_id": None}, (256,)),
    ],
)
def test_the_end_of_sequence_is_what_generation_then_model_then_tokenizer_say(
    tmp_path: Path, generation: object, model: object, expected: tuple[int, ...]
) -> None:
    make_byte_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(model))

    assert ModelTokenizer(tmp_path).eos_token_ids == expected
