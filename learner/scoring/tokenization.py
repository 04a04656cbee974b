"""The model's tokenizer, without torch: prompts to tokens, and completions to text."""

import datetime as dt
import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tokenizers import Tokenizer

from echo2swarm.models.architecture import vocab_size
from echo2swarm.system.errors import ConfigError
from learner.scoring.end_tokens import EndTokens, end_tokens
from learner.tasks.base import PromptText, Turn
from protocols.sampling import MAX_STOP_TOKENS

TEMPLATE_DATE: Final = dt.datetime(2024, 7, 26, tzinfo=dt.UTC)
"""The date that every chat template is given for today's: a prompt must be the same whenever it is
rendered, or answers to it would be refused after midnight, and evaluations would not compare."""


class _TemplateDay(dt.datetime):
    """A clock that stands at :data:`TEMPLATE_DATE`."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Self:
        at = TEMPLATE_DATE
        return cls(at.year, at.month, at.day, tzinfo=tz)


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
        self._special: dict[str, int] = {
            token.content: i
            for i, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special and token.content
        }
        self._special_text = re.compile("|".join(map(re.escape, self._special)) or "(?!)")
        model = _read_json(folder / "config.json")
        self.vocab_size: int = vocab_size(model) or self._tokenizer.get_vocab_size(
            with_added_tokens=True
        )
        """How many different tokens the model may sample."""
        ends = self._end_tokens(model)
        self.eos_token_ids = ends.ids
        """Tokens that end a completion, the most usual one first; may be empty."""
        self.warnings: tuple[str, ...] = (ends.warning,) if ends.warning else ()
        """What its files say that may be wrong."""

    def check_vocabulary(self) -> None:
        """See that the model has an embedding of every token that a prompt may have.

        Raises:
            ConfigError: the tokenizer is of another model, or was extended alone.
        """
        beyond = {
            token: i
            for token, i in self._tokenizer.get_vocab(with_added_tokens=True).items()
            if i >= self.vocab_size
        }
        if beyond:
            first = min(beyond, key=beyond.__getitem__)
            raise ConfigError(
                f"{self._folder}: {len(beyond)} tokens of tokenizer.json are beyond the model's "
                f"vocabulary of {self.vocab_size} (the first: {first!r}, {beyond[first]}): save "
                "the tokenizer that belongs to the model, or resize the model's embedding"
            )

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

    def completion_text(
        self, tokens: Sequence[int], *, stop: Iterable[str] = (), kept: Collection[str] = ()
    ) -> str:
        """Return the text of a completion up to the first of ``stop``.

        Args:
            tokens: the completion.
            stop: texts that end it. One with a special token in it is looked for in the text with
                special tokens, the others in the text that is returned.
            kept: special tokens that stay in the text; others are left out.
        """
        with_special = [s for s in stop if self._special_text.search(s)]
        kept = [text for text in kept if text in self._special]
        if not with_special and not kept:
            return _cut(self.decode(tokens), stop)
        written = str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
        written = _cut(written, with_special)
        text = self._special_text.sub(lambda m: m[0] if m[0] in kept else "", written)
        return _cut(text, (s for s in stop if s not in with_special))

    def can_write(self, text: str) -> bool:
        """Whether a completion may contain ``text``: whether it survives the tokenizer.

        Tokenizers may lack its characters, or change them (to lower case, for instance).
        """
        # Some drop white space at a beginning.
        return any(text in self._back_and_forth(f"{put}{text}{put}") for put in ("", "a"))

    def _back_and_forth(self, text: str) -> str:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def stop_token_ids(self, stop: Iterable[str]) -> tuple[int, ...]:
        """Return the tokens to stop sampling at: end of sequence, and all with a ``stop`` inside.

        Of special tokens it is those that are one of ``stop``, of others those with one inside.
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
        special = (self._special[s] for s in stop if s in self._special)
        tokens = dict.fromkeys((*self.eos_token_ids, *special, *(i for _, i in found)))
        return tuple(tokens)[:MAX_STOP_TOKENS]

    def _render(self, turns: tuple[Turn, ...]) -> str:
        if self._chat is None:
            # Two seconds to import, though without torch; most tasks are plain text.
            from transformers import PreTrainedTokenizerFast  # noqa: PLC0415
            from transformers.utils import chat_template_utils  # noqa: PLC0415

            # What ``strftime_now`` of a template asks; the library has no argument for it.
            vars(chat_template_utils)["datetime"] = _TemplateDay
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

    def _end_tokens(self, model: dict[str, Any]) -> EndTokens:
        text = _read_json(self._folder / "tokenizer_config.json").get("eos_token")
        if isinstance(text, dict):  # some files wrap it
            text = text.get("content")
        return end_tokens(
            _read_json(self._folder / "generation_config.json"),
            model,
            self._tokenizer.token_to_id(text) if isinstance(text, str) else None,
            vocab_size=self.vocab_size,
        )


def _cut(text: str, stop: Iterable[str]) -> str:
    ends = [at for s in stop if (at := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} is not valid JSON: {exc}") from None
    return content if isinstance(content, dict) else {}
