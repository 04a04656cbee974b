"""Scenarios explained: a commented one to begin with, and the tables of ``docs/simulate.md``.

``python -m echo2swarm.simulate.text docs/simulate.md`` brings those up to date.
"""

import sys
from pathlib import Path
from typing import Final

import msgspec

from echo2swarm.simulate.scenario import load_scenario
from echo2swarm.simulate.tables import EventTable, NodesTable, Scenario
from echo2swarm.system.errors import UsageError
from echo2swarm.text.suggest import suggest
from echo2swarm.text.toml_docs import (
    comment,
    field_docs,
    key_table,
    summary,
    toml_of,
    with_generated,
)
from echo2swarm.text.toml_tables import Table, table_type

MODULE: Final = "echo2swarm.simulate.text"
FOLDER: Final = Path(__file__).parent / "scenarios"
EXAMPLE: Final = "home"
_HEAD: Final = """\
# A scenario: `swarm simulate THIS_FILE`. Every key; those that are left out have a default.
"""


def names() -> list[str]:
    """Return the scenarios that come with the program."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(name_or_path: str) -> Path:
    """Return the file of a scenario: a path, or the name of one that comes with the program.

    Raises:
        UsageError: it is neither.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = FOLDER / f"{name_or_path}.toml"
    if name_or_path in names():
        return shipped
    raise UsageError(f"{name_or_path}: no such file, nor scenario{suggest(name_or_path, names())}")


def example_scenario() -> str:
    """Return a scenario with every key explained."""
    scenario = load_scenario(FOLDER / f"{EXAMPLE}.toml")
    parts = [_HEAD]
    for field in msgspec.structs.fields(Scenario):
        value = getattr(scenario, field.name)
        if table_type(field.type) is not None:
            parts.append(_commented(f"[{field.name}]", value))
        elif field.name == "name":
            parts.append(f"name = {toml_of(value)}\n")
    for i, kind in enumerate(scenario.nodes):
        parts.append(_commented("[[nodes]]", kind, is_explained=i == 0))
    for i, event in enumerate(scenario.events):
        parts.append(_commented("[[events]]", event, is_explained=i == 0))
    return "\n".join(parts)


def markdown() -> str:
    """Return tables of all keys."""
    sections: list[tuple[str, type[msgspec.Struct]]] = []
    for field in msgspec.structs.fields(Scenario):
        kind = table_type(field.type)
        if kind is not None:
            sections.append((f"[{field.name}]", kind))
    sections += [("[[nodes]]", NodesTable), ("[[events]]", EventTable)]
    return "\n".join(
        f"### {title}\n\n{summary(kind)}\n\n{key_table(kind, beyond=Table)}"
        for title, kind in sections
    )


def _commented(title: str, table: msgspec.Struct, *, is_explained: bool = True) -> str:
    docs = field_docs(type(table)) if is_explained else {}
    lines = [*(comment(summary(type(table))) if is_explained else ()), title]
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if is_explained:
            lines += ["", *comment(docs.get(name, ""))]
        if value is not None:
            lines.append(f"{name} = {toml_of(value)}")
        elif is_explained:
            lines.append(f"# {name} =")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Bring the page named on the command line up to date."""
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_generated(path.read_text(), markdown(), by=MODULE))


if __name__ == "__main__":
    main()
