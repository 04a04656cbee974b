"""Kinds of tasks by name: ours, and those that installed packages bring."""

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

import msgspec

from echo2swarm.system.errors import ConfigError
from echo2swarm.text.suggest import suggest
from echo2swarm.text.toml_tables import convert_table
from learner.tasks.base import Task, TaskKind, TaskOptions

ENTRY_POINT_GROUP: Final = "echo2swarm.tasks"
BUILT_IN: Final = ("arithmetic", "sort_digits", "reasoning_gym", "jsonl", "function")


def find_kind(name: str) -> TaskKind:
    """Import a kind of task; code of others is run only for kinds of theirs.

    Raises:
        ConfigError: there is none of this name; the message has the nearest one.
    """
    if name in BUILT_IN:
        return cast("TaskKind", importlib.import_module(f"learner.tasks.{name}"))
    return cast("TaskKind", _foreign_kind(name).load())


def read_options(table: Mapping[str, Any], kind: TaskKind) -> TaskOptions:
    """Return a ``[task]`` table as its kind's options.

    Raises:
        ConfigError: a key that this kind does not know, or a value that does not fit.
    """
    title = f'[task] of kind "{table["kind"]}"'
    return convert_table(table, kind.Options, where="task", title=title)


def check_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``[task]`` table with all its defaults; runs no code but ours.

    The options of a kind that another package brings are checked when the scorer opens it.

    Raises:
        ConfigError: see :func:`read_options`; or there is no such kind.
    """
    name = _kind_of(table)
    if name in BUILT_IN:
        return cast("dict[str, Any]", msgspec.to_builtins(read_options(table, find_kind(name))))
    _foreign_kind(name)
    return dict(table)


def open_task(table: Mapping[str, Any], *, seed: int) -> tuple[Task, TaskOptions]:
    """Make the task of a ``[task]`` table ready.

    Raises:
        ConfigError: something in the table does not fit.
    """
    name = _kind_of(table)
    kind = find_kind(name)
    options = read_options(table, kind)
    return kind.open_task(options, seed=seed), options


def _kind_of(table: Mapping[str, Any]) -> str:
    name = table.get("kind")
    if name is None:
        raise ConfigError(f"task.kind: must be set{suggest('', BUILT_IN)}")
    if not isinstance(name, str):
        raise ConfigError(f"task.kind: expected the name of a kind, got {name}")
    return name


def _foreign_kind(name: str) -> EntryPoint:
    others = {found.name: found for found in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in others:
        raise ConfigError(f'task.kind: no "{name}"{suggest(name, (*BUILT_IN, *others))}')
    return others[name]
