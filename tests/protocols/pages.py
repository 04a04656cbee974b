"""The parts of the specification pages that follow from the code.

A page in ``docs/specs`` has marked blocks; this module renders what stands between
the marks. A test compares, and ``python -m tests.protocols.pages`` rewrites both the
pages and the golden bytes: run it after a *wanted* change, and read the difference.
"""

import ast
import importlib
import inspect as source_of
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec
from msgspec import inspect

from protocols import lifecycle
from protocols.heartbeat import NodeState
from tests.protocols.meanings import MEANINGS
from tests.protocols.samples import wire_bytes
from tests.protocols.strategies import struct_fields

SPECS: Final = Path(__file__).parents[2] / "docs" / "specs"
VECTORS: Final = Path(__file__).with_name("vectors.json")
HEX_DIGITS_PER_LINE: Final = 96

MODULES: Final[dict[str, tuple[str, ...]]] = {
    "ticket": ("protocols.ticket",),
    "manifest": ("protocols.manifest", "protocols.sampling"),
    "advert": ("protocols.advert",),
    "heartbeat": ("protocols.heartbeat",),
    "lifecycle": (),
    "leases": ("protocols.leases",),
    "rollouts": ("protocols.rollouts",),
    "chunks": ("protocols.chunks",),
    "bulk": ("protocols.bulk",),
    "probe": ("protocols.probe",),
    "holepunch": ("protocols.holepunch",),
    "status": ("protocols.status",),
    "framing": ("protocols.framing",),
    "envelope": ("protocols.envelope",),
    "children": (
        "echo2swarm.processes.wire",
        "echo2swarm.processes.engine_messages",
        "learner.trainer.messages",
        "learner.trainer.rank_messages",
        "learner.scoring.messages",
        "learner.scoring.checking",
        "learner.tasks.inputs",
        "learner.export.messages",
    ),
}
"""By page: the modules whose messages it specifies."""


def messages_in(module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    """Yield the messages that ``module`` defines, in the order of its text."""
    for kind in vars(module).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, msgspec.Struct)
            and kind.__module__ == module.__name__
        ):
            yield kind


def render_messages(page: str) -> str:
    """Return the field tables of all messages of ``page``."""
    modules = [importlib.import_module(name) for name in MODULES[page]]
    blocks = [_render_message(kind) for module in modules for kind in messages_in(module)]
    blocks += [_render_words(kind) for module in modules for kind in _words_in(module)]
    return "\n\n".join(blocks)


def _words_in(module: ModuleType) -> Iterator[type[StrEnum]]:
    for kind in vars(module).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, StrEnum)
            and kind.__module__ == module.__name__
        ):
            yield kind


def _render_words(kind: type[StrEnum]) -> str:
    words = ", ".join(f"`{word.value}`" for word in kind)
    return f"### {kind.__name__}\n\n{_one_line(kind.__doc__ or '')} One of: {words}."


def _render_message(kind: type[msgspec.Struct]) -> str:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    meanings = _field_docstrings(kind)
    tag = f'\n\nTagged `{info.tag_field}` = `"{info.tag}"`.' if info.tag_field else ""
    lines = [f"### {kind.__name__}", "", _one_line(kind.__doc__ or "") + tag, ""]
    fields = struct_fields(kind)
    if fields:
        lines += ["| field | type | limit | meaning |", "|---|---|---|---|"]
    for field in fields:
        meaning = (
            meanings.get(field.name)
            or MEANINGS.get(f"{kind.__name__}.{field.name}")
            or MEANINGS.get(field.name, "")
        )
        optional = "" if field.required else " May be left out."
        cells = (
            f"`{field.encode_name}`",
            _type(field.type),
            _limit(field.type),
            (meaning + optional).strip(),
        )
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines).rstrip()


def _field_docstrings(kind: type[msgspec.Struct]) -> dict[str, str]:
    (definition,) = ast.parse(source_of.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = _one_line(text)
            case _:
                pass
    return docs


def _one_line(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text.split("\n\n", maxsplit=1)[0])
    return " ".join(text.split()).replace("``", "`")


def _type(info: inspect.Type) -> str:
    match info:
        case inspect.StructType() | inspect.EnumType():
            return info.cls.__name__
        case inspect.VarTupleType():
            return f"list of {_type(info.item_type)}"
        case inspect.DictType():
            return "map"
        case inspect.UnionType():
            names = [_type(t) for t in info.types if not isinstance(t, inspect.NoneType)]
            return " or ".join(names + ["nil"] * info.includes_none)
        case inspect.RawType():
            return "any message"
        case _:
            return type(info).__name__.removesuffix("Type").lower()


def _limit(info: inspect.Type) -> str:
    match info:
        case inspect.IntType() | inspect.FloatType():
            low = f"> {_number(info.gt)}" if info.gt is not None else ""
            low = f">= {_number(info.ge)}" if info.ge is not None else low
            high = f"<= {_number(info.le)}" if info.le is not None else ""
            return ", ".join(part for part in (low, high) if part)
        case inspect.StrType():
            pattern = f"`{info.pattern}`" if info.pattern else ""
            return ", ".join(part for part in (_length(info, "characters"), pattern) if part)
        case inspect.BytesType():
            return _length(info, "bytes")
        case inspect.VarTupleType():
            inner = _limit(info.item_type)
            return _length(info, "items") + (f"; each {inner}" if inner else "")
        case inspect.UnionType():
            return "; ".join(filter(None, map(_limit, info.types)))
        case _:
            return ""


def _length(info: inspect.StrType | inspect.BytesType | inspect.VarTupleType, unit: str) -> str:
    if info.min_length is not None and info.min_length == info.max_length:
        return f"{info.min_length} {unit}"
    low = f">= {info.min_length}" if info.min_length else ""
    high = f"<= {info.max_length}" if info.max_length is not None else ""
    both = ", ".join(part for part in (low, high) if part)
    return f"{both} {unit}" if both else ""


def _number(value: float) -> str:
    for bits in (31, 32, 50, 63):
        if value == 2**bits - 1:
            return f"2^{bits} - 1"
    return str(value)


def render_vectors(page: str) -> str:
    """Return the golden bytes of ``page``, in hexadecimal."""
    blocks = []
    for name, data in wire_bytes()[page].items():
        text = data.hex()
        lines = [
            text[i : i + HEX_DIGITS_PER_LINE] for i in range(0, len(text), HEX_DIGITS_PER_LINE)
        ]
        blocks.append("\n".join([f"{name}:", "", "```text", *lines, "```"]))
    return "\n\n".join(blocks)


def render_transitions(page: str) -> str:
    """Return the table of a node's states and events; ``page`` is the one that has it."""
    del page
    events = list(dict.fromkeys(event for _, event in lifecycle.NEXT_STATE))
    lines = [
        "| | " + " | ".join(f"`{state}`" for state in NodeState) + " |",
        "|---" * (1 + len(NodeState)) + "|",
    ]
    for event in events:
        after = [lifecycle.NEXT_STATE[state, event] for state in NodeState]
        cells = [f"`{state}`" if state else "-" for state in after]
        lines.append(f"| {_one_line(event.__doc__ or '')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def render_vectors_file() -> str:
    """Return the text of ``vectors.json``."""
    as_hex = {p: {n: d.hex() for n, d in v.items()} for p, v in wire_bytes().items()}
    return json.dumps(as_hex, indent=1) + "\n"


RENDERERS: Final = {
    "messages": render_messages,
    "transitions": render_transitions,
    "vectors": render_vectors,
}
"""What stands between the marks of each name."""


def filled(page: str, text: str) -> str:
    """Return the ``text`` of ``page`` with its marked blocks as the code has them."""
    for mark, render in RENDERERS.items():
        begin, end = f"<!-- {mark}: from the code -->", f"<!-- {mark}: end -->"
        if begin in text:
            before, rest = text.split(begin, 1)
            after = rest.split(end, 1)[1]
            text = f"{before}{begin}\n\n{render(page)}\n\n{end}{after}"
    return text


def main() -> None:
    """Rewrite the golden bytes and the marked blocks of all pages."""
    VECTORS.write_text(render_vectors_file())
    for page in MODULES:
        path = SPECS / f"{page}.md"
        path.write_text(filled(page, path.read_text()))


if __name__ == "__main__":
    main()
