"""Tables that people wrote, as structs; every message names the key and the nearest right one."""

import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from echo2swarm.system.errors import ConfigError
from echo2swarm.system.locales import is_text
from echo2swarm.text.suggest import suggest

S = TypeVar("S", bound=msgspec.Struct)

Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,47}\Z",
        description="a name of up to 48 letters, digits, dots, hyphens and underscores, the first "
        "of them no dot or hyphen",
    ),
]
"""Of a run, or what else becomes part of ids and paths."""

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_GOT: Final = re.compile(r", got `[^`]*`$")
_MAX_VALUE_CHARS: Final = 80
MAX_NUMBER: Final = 2**53 - 1
"""JSON holds all integers up to it exactly; 64 bits, with room for sums and hours in seconds."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table: immutable, and unknown keys are an error."""


def convert_table(
    table: Mapping[str, Any], kind: type[S], *, where: str = "", title: str = ""
) -> S:
    """Return ``table`` as a ``kind``.

    Args:
        table: as read from TOML.
        kind: a struct, which may contain structs.
        where: name of the table, put in front of its keys.
        title: what the table is called in messages; its name if empty.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or out of its range.
    """
    _refuse_unknown(table, kind, where, title)
    try:
        struct = msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as exc:
        raise ConfigError(_explain(str(exc), table, kind, where)) from None
    _refuse_unstorable(table, where)
    return struct


def join_key(*names: str) -> str:
    """Return the dotted key of a value in nested tables."""
    return ".".join(name for name in names if name)


def table_type(annotation: object) -> type[msgspec.Struct] | None:
    """Return the struct that a field's annotation says it is, if it is one."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    is_struct = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    return typing.cast("type[msgspec.Struct]", annotation) if is_struct else None


def accepts(annotation: object, value: object) -> bool:
    """Return whether a field so annotated may hold ``value``, its range aside."""
    try:
        msgspec.convert(value, _without_limits(annotation))
    except msgspec.ValidationError:
        return False
    return True


def _without_limits(annotation: Any) -> Any:  # noqa: ANN401  # types are what it is about
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _without_limits(arguments[0])
    if origin in {typing.Union, types.UnionType}:
        return typing.Union[tuple(_without_limits(x) for x in arguments)]  # noqa: UP007
    return annotation


def _refuse_unknown(
    table: Mapping[str, Any], kind: type[msgspec.Struct], where: str, title: str = ""
) -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in table.items():
        if name not in fields:
            inside = f"in {title or f'[{where}]'}" if title or where else "at the top"
            raise ConfigError(
                f"{join_key(where, name)}: no such key {inside}{suggest(name, fields)}"
            )
        inner = table_type(fields[name])
        if inner is not None and isinstance(value, Mapping):
            _refuse_unknown(value, inner, join_key(where, name))


def _refuse_unstorable(value: object, where: str) -> None:
    """Refuse what TOML has, and files, databases, messages and the system's calls have not."""
    match value:
        case float() if not math.isfinite(value):
            raise ConfigError(f"{where}: expected a finite number, got {value}")
        case int() | float() if abs(value) > MAX_NUMBER:
            raise ConfigError(f"{where}: expected a number up to {MAX_NUMBER}, got {value}")
        case str() if "\0" in value:
            raise ConfigError(f"{where}: expected a text without NUL, got {value!r}")
        case str() if not is_text(value):
            raise ConfigError(f"{where}: expected text in UTF-8, got {value!a}")
        case Mapping():
            for name, inner in value.items():
                _refuse_unstorable(inner, join_key(where, name))
        case list() | tuple():
            for inner in value:
                _refuse_unstorable(inner, where)
        case _:
            pass


def _explain(message: str, table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> str:
    """Turn msgspec's message into one with the key in front and the value at the end."""
    found = _AT.match(message)
    if found is None:  # pragma: no cover  # the pattern matches everything
        return message
    what, path = found["what"], found["path"] or ""
    if what.startswith("Object missing required field"):
        name = what.split("`")[1]
        return f"{join_key(where, path.lstrip('.'), name)}: must be set"
    value, is_known = _value_at(table, path)
    key = join_key(where, path.lstrip("."))
    if what.startswith("Invalid enum value"):
        annotation = _annotation_at(kind, path)
        choices = list(choices_of(annotation))
        or_number = " or a number" if _takes_number(annotation) else ""
        what = "not a possible value"
        if choices:
            what = f"expected one of {_shown(choices)[1:-1]}{or_number}"
    if " matching regex " in what:
        words = _words_for(_annotation_at(kind, path))
        what = f"expected {words}" if words else what
    what = _GOT.sub("", what)
    got = f", got {_shown(value)}" if is_known else ""
    return f"{key}: {what[:1].lower()}{what[1:]}{got}"


def _annotation_at(kind: type[msgspec.Struct], path: str) -> object:
    """Return the type of the field at ``path``, as far as it leads through structs."""
    annotation: object = kind
    for name, _ in _STEP.findall(path):
        struct = table_type(annotation)
        fields = {f.name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        if name not in fields:
            return annotation
        annotation = fields[name]
    return annotation


def _words_for(annotation: object) -> str:
    """Return what a text must be like, as its annotation describes it; "" if it does not."""
    for argument in typing.get_args(annotation):
        if isinstance(argument, msgspec.Meta) and argument.pattern is not None:
            return argument.description or ""
        if words := _words_for(argument):
            return words
    return ""


def _value_at(table: object, path: str) -> tuple[object, bool]:
    value: Any = table
    for name, index in _STEP.findall(path):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            return None, False
    return value, True


def _shown(value: object) -> str:
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, Mapping):
        text = "a table"
    elif isinstance(value, Sequence):
        text = f"[{', '.join(map(_shown, value))}]"
    else:
        text = str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."


def _takes_number(annotation: object) -> bool:
    return annotation in {int, float} or any(map(_takes_number, typing.get_args(annotation)))


def choices_of(annotation: object) -> Iterable[object]:
    """Return the values of a ``Literal``, alone or in a union; nothing for other types."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return typing.get_args(annotation)
    if origin in {typing.Union, types.UnionType, Annotated}:
        return [x for inner in typing.get_args(annotation) for x in choices_of(inner)]
    return ()
