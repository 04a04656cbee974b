"""The tiny model that lies in the tests' data."""

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from echo2swarm.models.folder import check_model_folder
from echo2swarm.models.tiny import ASK_ID, EOS_ID
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = pytest.mark.model


def test_its_tokenizer_has_a_symbol_per_character() -> None:
    tokenizer = Tokenizer.from_file(str(check_model_folder(TINY_MODEL_DIR) / "tokenizer.json"))

    assert tokenizer.encode("312=").ids == [3, 1, 2, ASK_ID]
    assert tokenizer.decode([1, 2, 3, EOS_ID]) == "123"
    assert tokenizer.get_vocab_size() == 16


def test_it_sorts_about_half_the_time() -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL_DIR, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    digits = torch.randint(0, 10, (1000, 3), generator=generator)
    tokens = torch.cat([digits, torch.full((1000, 1), ASK_ID)], 1)

    with torch.no_grad():
        for _ in range(4):
            probabilities = model(input_ids=tokens).logits[:, -1].softmax(-1)
            chosen = torch.multinomial(probabilities, 1, generator=generator)
            tokens = torch.cat([tokens, chosen], 1)

    num_right = sum(row[4:] == [*sorted(row[:3]), EOS_ID] for row in tokens.tolist())
    assert 350 < num_right < 600
