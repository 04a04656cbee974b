"""A file of JSON lines: read, hashed, and each value of the type that it must have."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from echo2swarm.system.errors import ConfigError
from echo2swarm.system.text_files import why_not_utf8, without_mark
from echo2swarm.text.suggest import suggest
from learner.tasks.base import PromptText, Turn
from learner.tasks.inputs import Input

_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_MAX_SHOWN_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a file."""

    where: str
    """File and line, for messages."""
    fields: Mapping[str, Any]

    def field(self, name: str, *, key: str) -> Any:  # noqa: ANN401 - whatever JSON has
        """Return a field.

        Args:
            name: its name.
            key: the option that says so, for messages.

        Raises:
            ConfigError: there is no such field.
        """
        if name not in self.fields:
            raise ConfigError(
                f'{self.where}: no field "{name}" ({key}){suggest(name, self.fields)}'
            )
        return self.fields[name]

    def prompt(self, name: str, *, key: str) -> PromptText:
        """Return a field that is text, or a chat.

        Raises:
            ConfigError: it is neither, or empty, or there is no such field.
        """
        value = self.field(name, key=key)
        wanted = "expected text, or a chat: a list of {role, content}"
        if isinstance(value, list):
            try:
                turns = msgspec.convert(value, tuple[Turn, ...])
            except msgspec.ValidationError as exc:
                raise self._wrong(name, key, wanted, value, why=str(exc)) from None
            if turns:
                return turns
        elif isinstance(value, str) and value.strip():
            return value
        raise self._wrong(name, key, wanted, value)

    def answer(self, name: str, *, key: str) -> str:
        """Return a field that is text or a number, as text.

        Raises:
            ConfigError: it is neither, or empty, or there is no such field.
        """
        value = self.field(name, key=key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number or (isinstance(value, str) and value.strip()):
            return str(value)
        raise self._wrong(name, key, "expected text or a number", value)

    def _wrong(
        self, name: str, key: str, wanted: str, value: object, *, why: str = ""
    ) -> ConfigError:
        try:
            shown = json.dumps(value)
        except RecursionError:
            shown = "something too deeply nested"
        if len(shown) > _MAX_SHOWN_CHARS:
            shown = f"{shown[:_MAX_SHOWN_CHARS]}..."
        more = f" ({why})" if why else ""
        return ConfigError(f'{self.where}: field "{name}" ({key}): {wanted}, got {shown}{more}')


@dataclass(frozen=True, slots=True)
class Rows:
    """The objects of a file."""

    rows: tuple[Row, ...]
    source: Input
    """The file, as it was when it was read."""


def content_of(prompt: PromptText) -> str:
    """Return what tells a prompt from others, as text."""
    if isinstance(prompt, str):
        return prompt
    return json.dumps([[turn.role, turn.content] for turn in prompt], ensure_ascii=False)


def read_rows(path: str) -> Rows:
    """Read the objects of a file of JSON lines; empty lines are skipped.

    Raises:
        ConfigError: it can't be read, a line is not an object, or there is none.
    """
    sha256 = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            rows = tuple(_rows(path, _hashed(file, sha256)))
    except OSError as exc:
        raise ConfigError(f"task.path: can't read {path}: {exc.strerror}") from exc
    if not rows:
        raise ConfigError(f"task.path: {path} has no lines")
    return Rows(rows, Input("task.path", path, sha256.hexdigest()))


def _hashed(lines: Any, sha256: Any) -> Iterator[bytes]:  # noqa: ANN401 - a file, and a hash
    for line in lines:
        sha256.update(line)
        yield line


def _rows(path: str, lines: Iterator[bytes]) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, raw in enumerate(lines, start=1):
        if number == 1 and (why := why_not_utf8(raw)):
            raise ConfigError(f"task.path: {path}: {why}")
        line = without_mark(raw) if number == 1 else raw
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield Row(where, decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            why = _half_pair(line) or str(exc)
            raise ConfigError(f"{where}: not a JSON object: {why}") from None
        except RecursionError:
            raise ConfigError(f"{where}: too deeply nested") from None


def _half_pair(line: bytes) -> str:
    """Return what is wrong with a line that only a lenient parser takes."""
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
    found = _HALF_PAIR.search(text)
    return f"half of a pair of surrogates, \\u{ord(found[0]):04x}" if found else ""
