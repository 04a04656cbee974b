"""A broadcast to many peers, simulated: the mesh beside a star, a chain and trees.

The mesh is made of the cores that run in the learner and the nodes, on virtual time
(:mod:`benchmarks.mesh_simulation`). Peers have uplinks of 50 to 1000 Mbit/s, log-uniform,
as spread as contributed machines are. The others are computed, and flattered: a tree knows all
uplinks beforehand, and loses no time but its chunks' passage; whoever is below a peer that
dies waits for the star's share of the source at the end::

    python -m benchmarks.mesh_sim --quick
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.harness import Mark, Outcome, finish
from benchmarks.mesh_simulation import PeerSpec, Result, Scenario, simulate
from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s, star_s

MBIT: Final = 125_000.0
PAYLOAD_BYTES: Final = 1_000_000_000
CHUNK_BYTES: Final = 2 * 1024 * 1024
SOURCE_MBIT: Final = 200.0
SLOWEST_MBIT: Final = 50.0
FASTEST_MBIT: Final = 1000.0
DOWN_MBIT: Final = 1000.0
DEATHS: Final = 0.3
TREE_DEGREE: Final = 3
COLUMNS: Final = (
    "peers",
    "T* s",
    "median x T*",
    "p95 x T*",
    "last x T*",
    "copies",
    "tree x T*",
    "chain x T*",
    "star x T*",
    "CPU s",
)
MAX_P95: Final = 1.15
MAX_P95_DEATHS: Final = 1.25


def main() -> int:
    """Simulate, print the table, and hold it to the marks."""
    parser = argparse.ArgumentParser(description="Simulate a broadcast to many peers.")
    parser.add_argument("--quick", action="store_true", help="64 peers and a smaller payload")
    parser.add_argument("--peers", type=int, nargs="*", default=None)
    parser.add_argument("--seeds", type=int, default=None, help="runs of each case")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sizes = args.peers or ([64] if args.quick else [64, 256, 1024])
    rows: list[tuple[str | float, ...]] = []
    marks: list[Mark] = []
    for num_peers in sizes:
        num_seeds = args.seeds or (1 if args.quick or num_peers > 256 else 3)
        for deaths in (0.0, DEATHS):
            rows.append(_row(num_peers, deaths, num_seeds))
            p95 = rows[-1][COLUMNS.index("p95 x T*")]
            marks.append(
                Mark(
                    name=f"{num_peers} peers, {deaths:.0%} die: p95 / T*",
                    value=float(p95),
                    at_most=MAX_P95_DEATHS if deaths else MAX_P95,
                )
            )
    outcome = Outcome(
        name="mesh_sim",
        what="How long a simulated broadcast takes, in multiples of the least possible time T*.",
        columns=COLUMNS,
        rows=tuple(rows),
        marks=tuple(marks),
    )
    return finish(outcome, json_path=args.json)


def _row(num_peers: int, deaths: float, num_seeds: int) -> tuple[str | float, ...]:
    started_s = time.process_time()
    results: list[Result] = []
    for seed in range(num_seeds):
        print(f"{num_peers} peers, {deaths:.0%} die, seed {seed}", file=sys.stderr, flush=True)
        results.append(simulate(_scenario(num_peers, deaths, seed)))
    scenario = _scenario(num_peers, deaths, 0)
    bound_s = results[0].bound_s

    def middle(values: Sequence[float]) -> float:
        return round(statistics.median(values), 3)

    return (
        f"{num_peers}, {deaths:.0%} die",
        round(bound_s, 1),
        middle([r.share_s(0.5) / r.bound_s for r in results]),
        middle([r.share_s(0.95) / r.bound_s for r in results]),
        middle([r.share_s(1.0) / r.bound_s for r in results]),
        middle([r.source_copies for r in results]),
        round(_tree_s(scenario) / bound_s, 1),
        round(_chain_s(scenario) / bound_s, 1),
        round(_star_s(scenario) / bound_s, 1),
        round((time.process_time() - started_s) / num_seeds, 1),
    )


def _scenario(num_peers: int, deaths: float, seed: int) -> Scenario:
    # Not the simulation's own sequence: those who die would be those who know the source.
    rng = random.Random(f"scenario {seed}")
    spread = FASTEST_MBIT / SLOWEST_MBIT
    peers = [
        PeerSpec(
            up_bytes_per_s=SLOWEST_MBIT * spread ** rng.random() * MBIT,
            down_bytes_per_s=DOWN_MBIT * MBIT,
        )
        for _ in range(num_peers)
    ]
    scenario = Scenario(
        payload_bytes=PAYLOAD_BYTES,
        chunk_bytes=CHUNK_BYTES,
        source_bytes_per_s=SOURCE_MBIT * MBIT,
        peers=peers,
        seed=seed,
    )
    whole_s = _bound_s(scenario)
    for i in rng.sample(range(num_peers), int(deaths * num_peers)):
        peers[i] = replace(peers[i], dies_at_s=rng.uniform(0, whole_s))
    return scenario


def _bound_s(scenario: Scenario) -> float:
    return broadcast_bound_s(
        scenario.payload_bytes,
        source_bytes_per_s=scenario.source_bytes_per_s,
        up_bytes_per_s=[p.up_bytes_per_s for p in scenario.peers],
        down_bytes_per_s=[p.down_bytes_per_s for p in scenario.peers],
    )


def _star_s(scenario: Scenario) -> float:
    return star_s(
        scenario.payload_bytes,
        source_bytes_per_s=scenario.source_bytes_per_s,
        num_peers=sum(p.dies_at_s == float("inf") for p in scenario.peers),
    )


def _chain_s(scenario: Scenario) -> float:
    """Return when the last of a chain has it: the slowest uplink sets the pace of all after it."""
    return _passed_on_s(scenario, degree=1)


def _tree_s(scenario: Scenario) -> float:
    """Return when the last leaf of one tree has it, the fastest uplinks nearest to the root."""
    return _passed_on_s(scenario, degree=TREE_DEGREE)


def _passed_on_s(scenario: Scenario, *, degree: int) -> float:
    ordered = sorted(scenario.peers, key=lambda p: -p.up_bytes_per_s)
    rate = [scenario.source_bytes_per_s / degree]
    delay_s = [0.0]
    is_cut = [False]
    num_cut = 0
    for i, peer in enumerate(ordered, start=1):
        above = (i - 1) // degree
        inflow = min(rate[above], peer.down_bytes_per_s)
        delay_s.append(delay_s[above] + scenario.chunk_bytes / inflow)
        rate.append(min(inflow, peer.up_bytes_per_s / degree))
        dies = peer.dies_at_s < float("inf")
        num_cut += is_cut[above] and not dies
        is_cut.append(is_cut[above] or dies)
    last_s = max(
        delay_s[i] + scenario.payload_bytes / min(rate[(i - 1) // degree], p.down_bytes_per_s)
        for i, p in enumerate(ordered, start=1)
    )
    # Who lost its way is served by the source itself, half of the payload on average.
    return last_s + num_cut * scenario.payload_bytes / 2 / scenario.source_bytes_per_s


if __name__ == "__main__":
    sys.exit(main())
