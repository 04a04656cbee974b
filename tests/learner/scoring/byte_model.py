"""A model's folder with a tokenizer whose tokens are bytes, and no weights."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

EOS: Final = "<eos>"
CHAT_TEMPLATE: Final = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def make_byte_model(folder: Path, *, with_chat: bool = True, special: Sequence[str] = ()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, *special])
    # As some published files have it; it must not shorten prompts.
    tokenizer.enable_truncation(max_length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
    if with_chat:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 320, "eos_token_id": 256}))
    return folder
