"""A model of 0.1 M parameters that sorts three digits, mostly wrongly: for tests.

Its vocabulary has one symbol per character: ``312=`` asks for ``123`` and the end.
It was warmed up on targets of which most are in random order, so that it gives
the right answer about 45 times of 100, and reinforcement learning has something
to find. ``python -m echo2swarm.models.tiny FOLDER`` makes it again (about half a
minute); the result lies in the tests' data.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

EOS: Final = "<eos>"
SYMBOLS: Final = (*"0123456789", EOS, "=", "+", "-", "?", "<unk>")
EOS_ID: Final = SYMBOLS.index(EOS)
ASK_ID: Final = SYMBOLS.index("=")
NUM_DIGITS: Final = 3

_WARMUP_STEPS: Final = 250
_WARMUP_BATCH: Final = 96
_WARMUP_LEARNING_RATE: Final = 3e-3
_SHARE_SHUFFLED: Final = 0.6
_SEED: Final = 0


def make_tiny_model(folder: Path) -> None:
    """Write the warmed-up model and its tokenizer into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    model = _warmed_up()
    # By hand: save_pretrained would add the library's version to it.
    config = {
        "architectures": ["LlamaForCausalLM"],
        **{key: getattr(model.config, key) for key in _config_arguments()},
        "model_type": "llama",
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: value.detach().to(torch.bfloat16) for name, value in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _config_arguments() -> dict[str, Any]:
    return {
        "vocab_size": len(SYMBOLS),
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
    }


def _warmed_up() -> LlamaForCausalLM:
    torch.manual_seed(_SEED)
    rng = random.Random(_SEED)  # noqa: S311 - the same model every time
    model = LlamaForCausalLM(LlamaConfig(**_config_arguments()))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=_WARMUP_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0
    )
    for step in range(_WARMUP_STEPS):
        rows = [_example(rng) for _ in range(_WARMUP_BATCH)]
        tokens = torch.tensor(rows)
        logits = model(input_ids=tokens[:, :-1]).logits[:, NUM_DIGITS:]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), tokens[:, NUM_DIGITS + 1 :].flatten()
        )
        optimizer.param_groups[0]["lr"] = _WARMUP_LEARNING_RATE * (1 - step / _WARMUP_STEPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def _example(rng: random.Random) -> list[int]:
    digits = [rng.randrange(10) for _ in range(NUM_DIGITS)]
    answer = sorted(digits)
    if rng.random() < _SHARE_SHUFFLED:
        rng.shuffle(answer)
    return [*digits, ASK_ID, *answer, EOS_ID]


def _write_tokenizer(folder: Path) -> None:
    vocab = {symbol: index for index, symbol in enumerate(SYMBOLS)}
    tokenizer = Tokenizer(WordLevel(vocab=vocab, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 64,
        "eos_token": EOS,
        "pad_token": EOS,
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    make_tiny_model(Path(sys.argv[1]))
