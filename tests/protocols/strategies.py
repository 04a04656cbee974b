"""Hypothesis strategies and rule-breaking values for any message, read off its types.

A message that is added to ``protocols`` is tested without a line written for it.
"""

import importlib
import math
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

import protocols
from protocols.codec import Message

NAME_CHARACTERS = "abcXYZ019._-"


def every_message() -> list[type[Message]]:
    """Return every kind of message defined in ``protocols``."""
    found: dict[str, type[Message]] = {}
    for info in pkgutil.iter_modules(protocols.__path__):
        module = importlib.import_module(f"protocols.{info.name}")
        for name, kind in vars(module).items():
            if (
                isinstance(kind, type)
                and issubclass(kind, Message)
                and kind is not Message
                and kind.__module__ == module.__name__
            ):
                found[f"{module.__name__}.{name}"] = kind
    return [found[name] for name in sorted(found)]


def struct_fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """Return the fields of ``kind`` as msgspec sees them."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info.fields


def instances(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Return a strategy for lawful messages of ``kind``."""
    fields = struct_fields(kind)
    return st.builds(kind, **{f.name: _values(f.type) for f in fields})


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: PLR0911, PLR0912 - a table
    match info:
        case inspect.IntType():
            low, high = _int_bounds(info)
            return st.integers(low, high)
        case inspect.FloatType():
            if info.ge is None and info.gt is None:
                return st.floats(-1e9, 1e9)
            low_f = info.ge if info.ge is not None else (info.gt or 0) + 1e-9
            return st.floats(low_f, info.le if info.le is not None else 1e9)
        case inspect.StrType():
            most = min(info.max_length or 20, 20)
            if info.pattern is not None and "|" in info.pattern:
                return st.from_regex(info.pattern)
            if info.pattern is not None:
                tail = st.text(NAME_CHARACTERS, max_size=most - 1)
                return tail.map(lambda s: "a" + s)
            return st.text(min_size=info.min_length or 0, max_size=most)
        case inspect.BytesType():
            least = info.min_length or 0
            most = max(least, min(info.max_length or 40, 40))
            return st.binary(min_size=least, max_size=most)
        case inspect.MemoryViewType():
            least = info.min_length or 0
            most = max(least, min(info.max_length or 40, 40))
            return st.binary(min_size=least, max_size=most).map(memoryview)
        case inspect.VarTupleType():
            least = info.min_length or 0
            items = st.lists(_values(info.item_type), min_size=least, max_size=max(least, 3))
            return items.map(tuple)
        case inspect.UnionType():
            return st.one_of([_values(t) for t in info.types])
        case inspect.StructType():
            return instances(info.cls)
        case inspect.EnumType():
            return st.sampled_from(list(info.cls))
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case _:
            raise NotImplementedError(f"no strategy for {info}")


def _int_bounds(info: inspect.IntType) -> tuple[int, int]:
    low = info.ge if info.ge is not None else -(2**63) if info.gt is None else info.gt + 1
    high = info.le if info.le is not None else 2**64 - 1 if info.lt is None else info.lt - 1
    return int(low), int(high)


def unlawful_values(info: inspect.Type) -> Iterator[object]:
    """Yield values just outside each limit of a field's type, and one of another type."""
    yield {"no": "such type"}
    match info:
        case inspect.IntType():
            low, high = _int_bounds(info)
            yield from (low - 1, min(high + 1, 2**64 - 1))
        case inspect.FloatType():
            yield from _unlawful_floats(info)
        case inspect.StrType():
            if info.pattern is not None:
                yield from ("..", ".hidden", "a/b", "a\n", "-a", "")
            yield from _unlawful_lengths(info, "a")
        case inspect.BytesType():
            yield from _unlawful_lengths(info, b"a")
        case inspect.VarTupleType():
            yield from _unlawful_lengths(info, [_one_of(info.item_type)])
        case inspect.EnumType():
            yield "no such word"
        case inspect.UnionType():
            inner = [t for t in info.types if not isinstance(t, inspect.NoneType)]
            if len(inner) == 1:
                yield from unlawful_values(inner[0])
        case _:
            pass


def _unlawful_floats(info: inspect.FloatType) -> Iterator[float]:
    if info.ge is not None:
        yield from (info.ge - 1e-6, math.nan)
    if info.gt is not None:
        yield from (info.gt, math.nan)
    if info.le is not None:
        yield from (info.le * 1.001, math.inf)


def _unlawful_lengths(
    info: inspect.StrType | inspect.BytesType | inspect.VarTupleType,
    unit: "str | bytes | list[Any]",
) -> Iterator[object]:
    if info.min_length:
        yield unit * (info.min_length - 1)
    if info.max_length is not None:
        yield unit * (info.max_length + 1)


def _one_of(info: inspect.Type) -> object:  # noqa: PLR0911 - a table
    """Return some lawful value, as plain data."""
    match info:
        case inspect.IntType():
            return _int_bounds(info)[0]
        case inspect.StrType():
            return "a" * max(1, info.min_length or 0)
        case inspect.BytesType():
            return bytes(info.min_length or 0)
        case inspect.FloatType():
            return float(info.le if info.le is not None else 1.0)
        case inspect.StructType():
            filled = {f.encode_name: _one_of(f.type) for f in info.fields if f.required}
            return {**({info.tag_field: info.tag} if info.tag_field else {}), **filled}
        case inspect.VarTupleType():
            return [_one_of(info.item_type)] * (info.min_length or 0)
        case inspect.EnumType():
            return next(iter(info.cls)).value
        case inspect.UnionType() if info.includes_none:
            return None
        case inspect.BoolType():
            return True
        case _:
            raise NotImplementedError(f"no value for {info}")


def as_data(message: msgspec.Struct) -> dict[str, Any]:
    """Return ``message`` as the plain map that travels."""
    data = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    assert isinstance(data, dict)
    return data
