"""A small scenario to change."""

from typing import Any

from echo2swarm.simulate.scenario import parse
from echo2swarm.simulate.tables import Scenario
from protocols.leases import Lease, LeasedGroup, SampleSpec
from protocols.sampling import SamplingParams

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


SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=8, stop_token_ids=())


def lease(
    lease_id: str, *, num_groups: int = 1, min_version: int = 0, deadline_step: int = 9
) -> Lease:
    groups = tuple(
        LeasedGroup(
            group_id=100 * int(lease_id[-1]) + i,
            prompt_tokens=b"\0" * 4,
            samples=tuple(SampleSpec(index=j, seed=j) for j in range(4)),
        )
        for i in range(num_groups)
    )
    return Lease(
        lease_id=lease_id,
        min_version=min_version,
        deadline_step=deadline_step,
        groups=groups,
        sampling=SAMPLING,
    )
