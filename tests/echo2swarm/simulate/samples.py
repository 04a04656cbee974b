"""A small scenario to change."""

from typing import Any

from echo2swarm.simulate.scenario import parse
from echo2swarm.simulate.tables import Scenario

TABLES: dict[str, Any] = {
    "name": "small",
    "run": {"num_steps": 12, "seed": 1},
    "learner": {
        "prompts_per_step": 4,
        "group_size": 4,
        "max_staleness": 3,
        "train_s": 10.0,
        "lease_prompts": 1,
    },
    "broadcast": {"fixed_s": 1.0},
    "nodes": [{"name": "node", "count": 4, "rollouts_per_s": 0.8}],
}


def tables(**changes: object) -> dict[str, Any]:
    """Return the tables with some keys of some tables changed; lists are replaced."""
    merged = {**TABLES}
    for name, value in changes.items():
        before = merged.get(name)
        is_table = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = {**before, **value} if is_table else value  # type: ignore[dict-item]
    return merged


def scenario(**changes: object) -> Scenario:
    """Return the small scenario, changed."""
    return parse(tables(**changes))


def node(**changes: object) -> dict[str, Any]:
    """Return one kind of nodes."""
    return {**TABLES["nodes"][0], **changes}
