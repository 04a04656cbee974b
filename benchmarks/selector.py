"""Is the selector right, fast, and calm? ``python -m benchmarks.selector [--quick] [--json FILE]``.

- *Right*: in random small markets its choice costs what the cheapest of all subsets costs;
  all of them are tried here, B anew for each, by code that shares nothing with the selector.
- *Fast*: 10,000 offers of which no two are alike, in seconds, held against a lower bound.
- *Calm*: with prices that tremble it switches nodes far less often than choosing anew each
  time, and pays little for that.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isinf
from pathlib import Path

import numpy as np

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.scheduling.capacity import LearnerLoad
from echo2swarm.scheduling.selection import Effort, Limits, Need, NodeOffer, Selection, select

SLACK = 1.15
NUM_ROUNDS = 100
SOLVE_S = 7.0


def main() -> int:
    """Measure, and hold the figures to the marks."""
    parser = argparse.ArgumentParser(description="Measure the selector.")
    parser.add_argument("--quick", action="store_true", help="fewer cases, in under 50 s")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    num_cases = 60 if args.quick else 300
    num_seeds = 1 if args.quick else 3
    rows: list[tuple[str | float, ...]] = []
    marks: list[Mark] = []
    figures: dict[str, object] = {}
    parts = (small(num_cases), large(range(num_seeds)), calm(range(num_seeds)))
    for more_rows, more_marks, more_figures in parts:
        rows += more_rows
        marks += more_marks
        figures |= more_figures
    outcome = Outcome(
        name="selector",
        what=(
            f"{num_cases} random markets of up to 12 offers against all subsets; 10,000 distinct "
            f"offers; {NUM_ROUNDS} rounds of 3 % noise on prices."
        ),
        columns=("what", "seconds", "USD/h", "beside", "switches"),
        rows=tuple(rows),
        marks=tuple(marks),
        figures=figures,
    )
    return finish(outcome, json_path=args.json)


Part = tuple[list[tuple[str | float, ...]], list[Mark], dict[str, object]]


# Right.


def small(num_cases: int) -> Part:
    """Compare with the cheapest of all subsets."""
    num_equal = num_feasible = num_greedy = 0
    took_s: list[float] = []
    dearer: list[float] = []
    for seed in range(num_cases):
        offers, need, limits = small_case(seed)
        best = cheapest_subset(offers, need, limits)
        found, seconds = timed(lambda: select(offers, need, limits))  # noqa: B023 - called here
        took_s.append(seconds)
        if isinf(best):
            num_equal += not found.is_feasible
            continue
        num_feasible += 1
        num_equal += found.is_feasible and abs(found.usd_per_hour - best) <= 1e-5 * best
        greedy = select(offers, need, limits, effort=Effort.GREEDY)
        if greedy.is_feasible:
            num_greedy += 1
            dearer.append(greedy.usd_per_hour / best - 1)
    took_s.sort()
    mean = sum(dearer) / len(dearer)
    rows: list[tuple[str | float, ...]] = [
        (f"{num_cases} small markets, median", took_s[num_cases // 2], "", "", ""),
        ("  slowest", took_s[-1], "", "", ""),
        (f"  feasible {num_feasible}; greedy found {num_greedy}", "", "", f"+{mean:.1%}", ""),
    ]
    marks = [
        Mark(
            name="share of small markets solved as by trying all",
            value=num_equal / num_cases,
            at_least=1.0,
        ),
        Mark(
            name="share of them that have a solution", value=num_feasible / num_cases, at_least=0.5
        ),
    ]
    return rows, marks, {"num_equal": num_equal, "num_feasible": num_feasible, "small_s": took_s}


def small_case(seed: int) -> tuple[list[NodeOffer], Need, Limits]:
    """Return a market in which each condition binds now and then."""
    rng = random.Random(seed)
    train_s, staleness = rng.uniform(5, 20), rng.randint(1, 4)
    load_s = rng.choice([0.0, 0.0, 1.5])
    offers = [
        NodeOffer(
            key=f"n{number:02d}",
            usd_per_hour=rng.uniform(0.1, 3),
            rollouts_per_s=(rate := rng.uniform(0.2, 4)),
            rollouts_per_s_std=rate * rng.choice([0.0, rng.uniform(0, 0.4)]),
            upload_bytes_per_s=rng.choice([0.0, rng.uniform(0, 10e6)]),
            download_bytes_per_s=rng.uniform(2e6, 50e6),
            load_s=load_s,
        )
        for number in range(rng.randint(3, 12))
    ]
    total = sum(offer.rollouts_per_s or 0.0 for offer in offers)
    need = Need(
        workload=LearnerLoad(
            rollouts_per_step=max(1, round(total * train_s * rng.uniform(0.1, 0.7))),
            train_s=train_s,
            max_staleness=staleness,
            publish_every=rng.randint(1, max(1, staleness - 1)),
        ),
        rollout_s=rng.uniform(0, train_s * 0.7),
        payload_bytes=rng.choice([0.0, rng.uniform(5e6, 80e6)]),
        source_bytes_per_s=rng.uniform(2e6, 20e6),
        z=rng.choice([0.0, 1.8]),
        broadcast_s=1.0,
    )
    limits = Limits(
        max_nodes=rng.choice([None, rng.randint(2, 10)]),
        max_usd_per_hour=rng.choice([None, rng.uniform(4, 15)]),
        max_node_usd_per_hour=rng.choice([None, 2.5]),
    )
    return offers, need, limits


def cheapest_subset(offers: Sequence[NodeOffer], need: Need, limits: Limits) -> float:
    """Return what the cheapest of all subsets costs that is allowed and suffices."""
    masks = np.arange(1, 1 << len(offers))
    taken = (masks[:, None] >> np.arange(len(offers))) & 1
    price = np.array([o.usd_per_hour for o in offers])
    usd, number = taken @ price, taken.sum(axis=1)
    supply = taken @ np.array([o.rollouts_per_s for o in offers], dtype=float)
    spread = np.sqrt(taken @ np.array([o.rollouts_per_s_std**2 for o in offers]))
    broadcast_s = np.full(len(masks), need.broadcast_s)
    if need.payload_bytes and need.source_bytes_per_s:
        up = need.source_bytes_per_s
        down = np.array([o.download_bytes_per_s for o in offers], dtype=float)
        slowest = np.where(taken == 1, down, inf).min(axis=1)
        uploads = up + taken @ np.array([o.upload_bytes_per_s for o in offers], dtype=float)
        share = np.maximum(np.maximum(1 / up, 1 / slowest), number / uploads)
        broadcast_s = offers[0].load_s + SLACK * need.payload_bytes * share
    load = need.workload
    covered_s = (load.max_staleness - load.publish_every + 1) * load.train_s
    within_s = np.minimum(load.train_s, covered_s - broadcast_s - need.rollout_s)
    with np.errstate(divide="ignore"):
        needed = np.where(
            within_s > 0, (1 + need.headroom) * load.rollouts_per_step / within_s, inf
        )
    good = supply - need.z * spread >= needed
    if limits.max_nodes is not None:
        good &= number <= limits.max_nodes
    if limits.max_usd_per_hour is not None:
        good &= usd <= limits.max_usd_per_hour
    if limits.max_node_usd_per_hour is not None:
        good &= (taken * price).max(axis=1) <= limits.max_node_usd_per_hour
    return float(usd[good].min()) if good.any() else inf


# Fast.


def large(seeds: Sequence[int]) -> Part:
    """Choose among 10,000 offers of which no two are alike."""
    rows: list[tuple[str | float, ...]] = []
    slowest_s = worst = worst_greedy = 0.0
    for seed in seeds:
        for share in (0.02, 0.3):
            offers, need = large_case(seed, share)
            greedy, greedy_s = timed(lambda: select(offers, need, effort=Effort.GREEDY))  # noqa: B023
            ends_s = time.perf_counter() + SOLVE_S
            found, seconds = timed(
                lambda: select(offers, need, left_s=lambda: ends_s - time.perf_counter())  # noqa: B023
            )
            bound = found.bound_usd_per_hour or 0.0
            gap = found.usd_per_hour / bound - 1 if bound else inf
            gain = greedy.usd_per_hour / found.usd_per_hour - 1
            slowest_s, worst = max(slowest_s, seconds), max(worst, gap)
            worst_greedy = max(worst_greedy, -gain)
            name = f"10,000 offers, {share:.0%} needed, seed {seed}"
            rows += [
                (f"{name}: greedy", greedy_s, greedy.usd_per_hour, f"{gain:+.2%}", ""),
                (f"  {found.method}", seconds, found.usd_per_hour, f"bound {-gap:+.2%}", ""),
            ]
    marks = [
        Mark(name="seconds for 10,000 distinct offers", value=slowest_s, at_most=10.0),
        Mark(name="cost above the bound", value=worst, at_most=0.04),
        Mark(name="cost above greedy", value=worst_greedy, at_most=0.0),
    ]
    return rows, marks, {"large_s": slowest_s, "large_gap": worst}


def large_case(seed: int, share: float) -> tuple[list[NodeOffer], Need]:
    """Return a large market, of which about ``share`` is needed."""
    rng = random.Random(seed)
    offers = []
    for number in range(10_000):
        rate = rng.lognormvariate(0, 0.6)
        offers.append(
            NodeOffer(
                key=f"n{number:05d}",
                usd_per_hour=rate * rng.lognormvariate(-1, 0.4),
                rollouts_per_s=rate,
                rollouts_per_s_std=rate * rng.uniform(0, 0.3),
                upload_bytes_per_s=rng.lognormvariate(14.5, 1),
                download_bytes_per_s=rng.lognormvariate(16, 0.7),
                load_s=rng.uniform(0, 3),
            )
        )
    total = sum(offer.rollouts_per_s or 0.0 for offer in offers)
    need = Need(
        workload=LearnerLoad(
            rollouts_per_step=round(share * total * 60), train_s=60.0, max_staleness=3
        ),
        rollout_s=20.0,
        payload_bytes=4e8,
        source_bytes_per_s=50e6,
    )
    return offers, need


# Calm.


def calm(seeds: Sequence[int]) -> Part:
    """Count switches under noise, with and without regard to who works already."""
    rows: list[tuple[str | float, ...]] = []
    fewer, dearer = [], []
    for seed in seeds:
        lazy, lazy_usd, lazy_s = follow(seed, is_lazy=True)
        eager, eager_usd, eager_s = follow(seed, is_lazy=False)
        fewer.append(lazy / max(1, eager))
        dearer.append(lazy_usd / eager_usd - 1)
        rows += [
            (f"noise, seed {seed}: anew each time", eager_s, eager_usd, "", eager),
            ("  with regard to who works", lazy_s, lazy_usd, f"{dearer[-1]:+.2%}", lazy),
        ]
    marks = [
        Mark(name="switches, against choosing anew each time", value=max(fewer), at_most=0.1),
        Mark(name="additional cost", value=max(dearer), at_most=0.06),
    ]
    return rows, marks, {"switches": fewer, "additional_cost": dearer}


def follow(seed: int, *, is_lazy: bool) -> tuple[int, float, float]:
    """Choose in each round; returns switches, mean USD per hour, and mean seconds."""
    rng, noise = random.Random(seed), random.Random(1000 + seed)
    base = []
    for number in range(60):
        rate = rng.uniform(0.5, 2)
        base.append(
            NodeOffer(
                key=f"n{number:02d}",
                usd_per_hour=rate * rng.uniform(0.1, 0.3),
                rollouts_per_s=rate,
                rollouts_per_s_std=0.05 * rate,
            )
        )
    workload = LearnerLoad(rollouts_per_step=1200, train_s=60.0, max_staleness=3)
    need = Need(workload=workload, rollout_s=20.0)
    active: set[str] = set()
    num_switches, usd, seconds = 0, 0.0, 0.0
    for number in range(NUM_ROUNDS):
        offers = [
            replace(
                offer,
                usd_per_hour=offer.usd_per_hour * max(0.1, noise.gauss(1, 0.03)),
                num_active=int(is_lazy and offer.key in active),
            )
            for offer in base
        ]
        found, took_s = timed(lambda: select(offers, need))  # noqa: B023 - called here
        chosen = set(found.chosen)
        num_switches += len(active ^ chosen) if number else 0
        active = chosen
        usd += found.usd_per_hour / NUM_ROUNDS
        seconds += took_s / NUM_ROUNDS
    return num_switches, usd, seconds


def timed(work: Callable[[], Selection]) -> tuple[Selection, float]:
    """Return what ``work`` returns, and how long it took."""
    began_s = time.perf_counter()
    made = work()
    return made, time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(main())
