"""Scenarios: what is refused, and how it is told."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2swarm.simulate import text
from echo2swarm.simulate.scenario import load_scenario, parse
from echo2swarm.simulate.tables import EventTable, NodesTable, Scenario
from echo2swarm.system.errors import ConfigError, UsageError
from echo2swarm.text.toml_docs import field_docs, with_generated
from echo2swarm.text.toml_tables import table_type
from tests.echo2swarm.simulate.samples import node, scenario, tables

PAGE = Path(__file__).parents[3] / "docs" / "simulate.md"
STRUCTS = [
    kind
    for field in msgspec.structs.fields(Scenario)
    if (kind := table_type(field.type)) is not None
] + [NodesTable, EventTable]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": []}, "nodes: there is none"),
        ({"nodes": [node(count=0)]}, "nodes: there is none"),
        ({"nodes": [node(count=-1)]}, "nodes[0].count: expected"),
        ({"nodes": [node(count=200_000)]}, "nodes[0].count: expected"),
        ({"nodes": [node(count=60_000), node(name="b", count=60_000)]}, "nodes: 120000 in all"),
        ({"nodes": {}}, "nodes: expected a list of tables"),
        ({"nodes": [node(rollouts_per_s=0.0)]}, "nodes[0].rollouts_per_s: expected"),
        ({"nodes": [node(rollouts_per_s=math.nan)]}, "nodes[0].rollouts_per_s: expected"),
        ({"nodes": [node(rollouts_per_s=math.inf)]}, "nodes[0].rollouts_per_s: expected a finite"),
        ({"nodes": [node(tokens_per_s=9.0)]}, "nodes[0]: set rollouts_per_s or tokens_per_s"),
        ({"nodes": [node(rollouts_per_s=None)]}, "nodes[0]: set rollouts_per_s or tokens_per_s"),
        ({"nodes": [node(), node()]}, 'nodes[1].name: "node" is taken'),
        ({"nodes": [node(pace=3)]}, "nodes[0].pace: no such key in [[nodes]]"),
        ({"nodes": [node(price_cv=0.1)]}, "nodes[0].price_cv: a price of 0 has no spread"),
        ({"learner": {"train_s": 0.0}}, "learner.train_s: expected"),
        ({"learner": {"train_s": math.nan}}, "learner.train_s: expected"),
        ({"learner": {"max_staleness": 1, "publish_every": 3}}, "learner.publish_every: expected"),
        ({"learner": {"group_size": 256, "lease_prompts": 100}}, "learner.lease_prompts: a lease"),
        ({"learner": {"max_stalenes": 1}}, 'did you mean "max_staleness"?'),
        ({"events": [{"at_s": 1.0, "kind": "price"}]}, "events[0].usd_per_hour: must be set"),
        ({"events": [{"at_s": 1.0, "kind": "outage"}]}, "events[0].for_s: must be set"),
        ({"events": [{"at_s": 1.0, "kind": "leave", "nodes": "nod"}]}, 'did you mean "node"?'),
        ({"events": [{"at_s": 1.0, "kind": "explode"}]}, "events[0].kind: expected one of"),
        ({"events": [{"at_s": math.inf, "kind": "leave"}]}, "events[0].at_s: expected a finite"),
    ],
)
def test_what_is_wrong_is_told_with_the_key_to_change(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tables(**changes))

    assert says in str(caught.value)


def test_nodes_that_join_later_are_nodes_enough() -> None:
    event = {"at_s": 5.0, "kind": "join", "nodes": "node", "count": 3}

    assert scenario(nodes=[node(count=0)], events=[event]).nodes[0].count == 0


@pytest.mark.parametrize("name", text.names())
def test_the_scenarios_that_come_with_the_program_are_right(name: str) -> None:
    assert load_scenario(text.find(name)).name == name


def test_the_example_is_the_scenario_that_it_explains(tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(text.example_scenario())

    assert load_scenario(path) == load_scenario(text.find(text.EXAMPLE))


def test_a_file_that_is_not_there_or_no_toml_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")

    with pytest.raises(ConfigError, match="not valid TOML"):
        load_scenario(broken)
    with pytest.raises(ConfigError, match="swarm simulate --example"):
        load_scenario(tmp_path / "none.toml")
    with pytest.raises(UsageError, match='did you mean "home"'):
        text.find("hom")


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: s.__name__)
def test_every_key_is_explained(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) <= set(field_docs(struct))


def test_the_tables_in_the_page_are_up_to_date() -> None:
    page = PAGE.read_text()

    assert with_generated(page, text.markdown(), by=text.MODULE) == page, (
        f"run: python -m {text.MODULE} docs/simulate.md"
    )
