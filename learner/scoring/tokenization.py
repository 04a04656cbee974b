"""The model's tokenizer, without torch: prompts to tokens, and completions to text."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from echo2swarm.errors import ConfigError
from learner.tasks.base import PromptText, Turn
from protocols.sampling import MAX_STOP_TOKENS


class ModelTokenizer:
    """Reads ``tokenizer.json`` and its neighbours in a model's folder."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} has no tokenizer.json; save the model's fast tokenizer there"
            )
        self._folder = folder
        self._tokenizer = Tokenizer.from_file(str(path))
        # Some models' files cut or pad what they encode.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._chat: Any = None
        model = _read_json(folder / "config.json")
        self.vocab_size: int = int(
            model.get("vocab_size") or self._tokenizer.get_vocab_size(with_added_tokens=True)
        )
        """How many different tokens the model may sample."""
        self.eos_token_ids = self._eos_token_ids(model)
        """Tokens that end a completion, the most usual one first; may be empty."""

    def encode(self, prompt: PromptText) -> tuple[list[int], str]:
        """Return the tokens of a prompt, and the text that they are of."""
        if isinstance(prompt, str):
            return list(self._tokenizer.encode(prompt).ids), prompt
        text = self._render(prompt)
        # The template has written special tokens, such as a beginning, itself.
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids), text

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a completion, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stop_token_ids(self, stop: Iterable[str]) -> tuple[int, ...]:
        """Return the tokens to stop sampling at: end of sequence, and all with a ``stop`` inside.

        There may be more of them than a lease can name; then those with little else inside are
        taken. A completion that runs past a stop text is cut there before it is scored.
        """
        stop = tuple(stop)
        found: list[tuple[int, int]] = []
        if stop:
            ids = range(self._tokenizer.get_vocab_size(with_added_tokens=True))
            texts = self._tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=True)
            found = sorted(
                (len(text), i)
                for i, text in zip(ids, texts, strict=True)
                if any(s in text for s in stop)
            )
        tokens = dict.fromkeys((*self.eos_token_ids, *(i for _, i in found)))
        return tuple(tokens)[:MAX_STOP_TOKENS]

    def _render(self, turns: tuple[Turn, ...]) -> str:
        if self._chat is None:
            # Two seconds to import, though without torch; most tasks are plain text.
            from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

            self._chat = PreTrainedTokenizerFast.from_pretrained(str(self._folder))
        if not self._chat.chat_template:
            raise ConfigError(
                f"the model in {self._folder} has no chat template: "
                'set task.template to "plain" or "few_shot"'
            )
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        return str(
            self._chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    def _eos_token_ids(self, model: dict[str, Any]) -> tuple[int, ...]:
        generation = _read_json(self._folder / "generation_config.json")
        for source in (generation, model):
            match source.get("eos_token_id"):
                case int(token):
                    return (token,)
                case list(tokens) if tokens:
                    return tuple(int(token) for token in tokens)
        text = _read_json(self._folder / "tokenizer_config.json").get("eos_token")
        if isinstance(text, dict):  # some files wrap it
            text = text.get("content")
        found = self._tokenizer.token_to_id(text) if isinstance(text, str) else None
        return () if found is None else (found,)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        raise ConfigError(f"{path} is not valid JSON: {exc}") from None
    return content if isinstance(content, dict) else {}
