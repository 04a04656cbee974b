"""A scenario read from TOML and checked; every message names the key and what to do."""

import tomllib
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec

from echo2swarm.simulate.tables import (
    MAX_NODES,
    EventKind,
    EventTable,
    NodesTable,
    Scenario,
)
from echo2swarm.system.errors import ConfigError
from echo2swarm.text.suggest import suggest
from echo2swarm.text.toml_tables import convert_table
from protocols.rollouts import MAX_ROLLOUTS

_MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_NEEDED_BY: Final[Mapping[EventKind, tuple[str, ...]]] = {
    "price": ("usd_per_hour",),
    "leave": (),
    "join": ("nodes", "count"),
    "outage": ("for_s",),
    "speed": ("factor",),
    "learner_outage": ("for_s",),
}


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in a TOML file, checked.

    Raises:
        ConfigError: it can't be read, or a key of it is wrong; the message names it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(
            f"{path}: can't be read: {exc.strerror}; `swarm simulate --example` shows a scenario"
        ) from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: over {_MAX_FILE_BYTES} bytes; is it a scenario?")
    try:
        tables = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None
    try:
        return parse({"name": path.stem, **tables})
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from None


def parse(tables: Mapping[str, Any]) -> Scenario:
    """Return ``tables``, as read from TOML, as a checked scenario.

    Raises:
        ConfigError: a key is unknown, or a value out of its range or at odds with others.
    """
    rest = {name: value for name, value in tables.items() if name not in ("nodes", "events")}
    scenario = convert_table(rest, Scenario)
    nodes = tuple(
        convert_table(each, NodesTable, where=f"nodes[{i}]", title="[[nodes]]")
        for i, each in enumerate(_list(tables, "nodes"))
    )
    events = tuple(
        convert_table(each, EventTable, where=f"events[{i}]", title="[[events]]")
        for i, each in enumerate(_list(tables, "events"))
    )
    return check_scenario(msgspec.structs.replace(scenario, nodes=nodes, events=events))


def _list(tables: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = tables.get(name, [])
    if not isinstance(value, list | tuple) or not all(isinstance(x, Mapping) for x in value):
        raise ConfigError(f"{name}: expected a list of tables, each beginning with [[{name}]]")
    return list(value)


def check_scenario(scenario: Scenario) -> Scenario:
    """Return ``scenario`` if its keys fit together.

    Raises:
        ConfigError: they don't; the message starts with the key to change.
    """
    learner = scenario.learner
    if learner.publish_every > learner.max_staleness + 1:
        raise ConfigError(
            f"learner.publish_every: expected at most learner.max_staleness + 1 = "
            f"{learner.max_staleness + 1}, got {learner.publish_every}: no rollout would be fresh "
            "enough for the last steps before a version is published"
        )
    if (per_lease := (learner.lease_prompts or 1) * learner.group_size) > MAX_ROLLOUTS:
        raise ConfigError(
            f"learner.lease_prompts: a lease would be of {per_lease} completions (times "
            f"learner.group_size); expected at most {MAX_ROLLOUTS}"
        )
    _check_nodes(scenario)
    for i, event in enumerate(scenario.events):
        _check_event(event, f"events[{i}]", {kind.name for kind in scenario.nodes})
    return scenario


def _check_nodes(scenario: Scenario) -> None:
    total = sum(kind.count for kind in scenario.nodes)
    total += sum(event.count or 0 for event in scenario.events if event.kind == "join")
    if not total:
        raise ConfigError(
            "nodes: there is none, so nothing would ever be sampled; add [[nodes]] with a count"
        )
    if total > MAX_NODES:
        raise ConfigError(f"nodes: {total} in all; expected at most {MAX_NODES}")
    seen: set[str] = set()
    for i, kind in enumerate(scenario.nodes):
        where = f"nodes[{i}]"
        if kind.name in seen:
            raise ConfigError(f'{where}.name: "{kind.name}" is taken; give each kind its own name')
        seen.add(kind.name)
        if (kind.rollouts_per_s is None) == (kind.tokens_per_s is None):
            raise ConfigError(f"{where}: set rollouts_per_s or tokens_per_s, and not both")
        if scenario.rollouts_per_s(kind) in (0.0, inf):
            raise ConfigError(f"{where}: its speed is beyond what can be computed with")
        if kind.price_cv and not kind.usd_per_hour:
            raise ConfigError(
                f"{where}.price_cv: a price of 0 has no spread; set usd_per_hour or leave it out"
            )


def _check_event(event: EventTable, where: str, names: set[str]) -> None:
    if event.nodes is not None and event.nodes not in names:
        raise ConfigError(
            f'{where}.nodes: no [[nodes]] is called "{event.nodes}"{suggest(event.nodes, names)}'
        )
    for key in _NEEDED_BY[event.kind]:
        if getattr(event, key) is None:
            raise ConfigError(f'{where}.{key}: must be set for kind = "{event.kind}"')
