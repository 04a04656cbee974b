"""The configuration explained, from the docstrings under its fields.

``python -m learner.config.text docs/config.md docs/tasks.md`` brings the tables
in those pages up to date.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from echo2swarm.system.errors import ConfigError, StoreError
from echo2swarm.text.toml_docs import (
    comment,
    default_of,
    field_docs,
    key_table,
    summary,
    toml_of,
    with_generated,
)
from echo2swarm.text.toml_tables import Table, table_type
from learner.config.tables import LearnerConfig
from learner.tasks.base import TaskOptions
from learner.tasks.prompting import PromptOptions
from learner.tasks.registry import BUILT_IN, find_kind

_HEAD: Final = """\
# Configuration of a run: `echo2-learner serve THIS_FILE`. Every key with its default;
# keys may be left out. `--set table.key=value` and ECHO2_TABLE__KEY=value win over it.
"""
_TASK_NOTE: Final = "Which task; docs/tasks.md has all kinds with their keys."
MODULE: Final = "learner.config.text"
"""As the marks in the pages name it."""


def write_commented(path: Path) -> None:
    """Write a configuration with every key, explained, at its default.

    Raises:
        ConfigError: there is a file already.
        StoreError: it can't be written.
    """
    text = commented()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} exists already; choose another name, or remove it") from None
    except OSError as exc:
        raise StoreError(f"{path}: can't be written: {exc.strerror}") from exc


def commented() -> str:
    """Return a configuration with every key, explained, at its default."""
    parts = [_HEAD]
    for table, struct in _tables():
        note = _TASK_NOTE if table == "task" else summary(struct)
        lines = [*comment(note), f"[{table}]"]
        docs = field_docs(struct)
        for field in msgspec.structs.fields(struct):
            lines += ["", *comment(docs.get(field.name, ""))]
            value = default_of(field)
            # TOML has no null: what is not set is left out.
            lines.append(
                f"# {field.name} =" if value is None else f"{field.name} = {toml_of(value)}"
            )
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def config_markdown() -> str:
    """Return tables of all keys, for ``docs/config.md``."""
    return "\n".join(
        _section(f"[{table}]", struct, beyond=Table)
        for table, struct in _tables()
        if table != "task"
    )


def tasks_markdown() -> str:
    """Return tables of the keys of each kind of task, for ``docs/tasks.md``."""
    sections = [
        _section("All kinds", TaskOptions, beyond=Table),
        _section('Prompts and answers: "reasoning_gym" and "jsonl"', PromptOptions),
    ]
    for kind in BUILT_IN:
        options = find_kind(kind).Options
        is_prompting = issubclass(options, PromptOptions)
        base = PromptOptions if is_prompting else TaskOptions
        sections.append(_section(f'kind = "{kind}"', options, beyond=base))
    return "\n".join(sections)


def _section(
    title: str, struct: type[msgspec.Struct], *, beyond: type[msgspec.Struct] = TaskOptions
) -> str:
    return f"### {title}\n\n{summary(struct)}\n\n{key_table(struct, beyond=beyond)}"


def _tables() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for field in msgspec.structs.fields(LearnerConfig):
        yield field.name, table_type(field.type) or find_kind("arithmetic").Options


def main() -> None:
    """Bring the pages named on the command line up to date."""
    generated = {"config.md": config_markdown, "tasks.md": tasks_markdown}
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_generated(path.read_text(), generated[path.name](), by=MODULE))


if __name__ == "__main__":
    main()
