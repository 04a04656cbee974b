"""The time model of the broadcast."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.simulate.broadcast import BroadcastModel
from echo2swarm.simulate.node import SimNode
from echo2swarm.simulate.tables import BroadcastTable, NodesTable


class FakeNode:
    def __init__(self, up_mbit: float, down_mbit: float) -> None:
        self.kind = NodesTable(
            name="node", rollouts_per_s=1.0, up_mbit=up_mbit, down_mbit=down_mbit
        )


def nodes(*links: tuple[float, float]) -> list[SimNode]:
    return [FakeNode(*link) for link in links]  # type: ignore[misc]  # only its kind is looked at


def model(upload_mbit: float = 80.0, **keys: float) -> BroadcastModel:
    table = BroadcastTable(**keys)  # type: ignore[arg-type]  # one of its keys is no number
    return BroadcastModel(table, upload_mbit=upload_mbit, rng=random.Random(1))


def test_the_last_node_has_it_after_the_overhead_times_the_least_time() -> None:
    times_s = model(payload_mb=100.0, overhead=1.2, spread=0.0).to_all_s(nodes((80.0, 800.0)))

    assert times_s == [pytest.approx(12.0)]  # 100 MB from an uplink of 10 MB/s


def test_who_can_upload_pays_for_the_others() -> None:
    weak = model(payload_mb=100.0).to_all_s(nodes((0.0, 800.0), (0.0, 800.0)))
    strong = model(payload_mb=100.0).to_all_s(nodes((80.0, 800.0), (80.0, 800.0)))

    assert max(strong) < max(weak)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 1000)), max_size=30),
    st.floats(0, 1),
)
def test_nobody_has_it_sooner_than_its_own_line_lets_it(
    links: list[tuple[float, float]], spread: float
) -> None:
    times_s = model(payload_mb=50.0, spread=spread).to_all_s(nodes(*links))

    assert all(
        time_s >= 50e6 / (down * 125_000) for time_s, (_, down) in zip(times_s, links, strict=True)
    )


def test_a_fixed_time_does_without_links() -> None:
    found = model(fixed_s=7.0, spread=0.0)

    assert found.to_all_s(nodes((0.0, 1.0), (9.0, 9.0))) == [7.0, 7.0]
    assert found.payload_bytes == 0
    assert found.expected_s is None


def test_a_fixed_time_is_that_of_the_last_node() -> None:
    times_s = model(fixed_s=10.0, spread=0.5).to_all_s(nodes(*[(1.0, 1.0)] * 200))

    assert 5.0 <= min(times_s) < 5.5
    assert 9.5 < max(times_s) <= 10.0


def test_a_node_that_joins_fetches_all_of_it() -> None:
    found = model(payload_mb=10.0, whole_mb=100.0, overhead=1.0)

    assert found.to_one_s(nodes((0.0, 800.0))[0]) == pytest.approx(10.0)
