"""Small markets, and the cheapest set of each by trying them all. Shares no code with selection."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf, sqrt

from echo2swarm.scheduling.capacity import LearnerLoad
from echo2swarm.scheduling.selection import Limits, Need, NodeOffer

SLACK = 1.15


def offer(key: str, usd: float, rate: float | None = 1.0, **fields: object) -> NodeOffer:
    return NodeOffer(
        key=key,
        usd_per_hour=usd,
        rollouts_per_s=rate,
        **fields,  # type: ignore[arg-type]
    )


def need(per_s: float = 1.0, **fields: object) -> Need:
    """Return a need of ``per_s`` as long as broadcasts take under 80 s."""
    plain = Need(
        workload=LearnerLoad(rollouts_per_step=round(100 * per_s), train_s=100.0, max_staleness=2),
        rollout_s=20.0,
        headroom=0.0,
        z=0.0,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def broadcast_s(offers: Sequence[NodeOffer], counts: Sequence[int], need: Need) -> float:
    """Return B of a set, by the bound's three terms; loads must be the same."""
    taken = [(o, n) for o, n in zip(offers, counts, strict=True) if n]
    up = need.source_bytes_per_s
    if not need.payload_bytes or not up:
        return need.broadcast_s
    slowest = min(o.download_bytes_per_s or 0.0 for o, _ in taken)
    uploads = up + sum(n * (o.upload_bytes_per_s or 0.0) for o, n in taken)
    copies = sum(n for _, n in taken)
    least_s = need.payload_bytes * max(1 / up, 1 / slowest, copies / uploads)
    return taken[0][0].load_s + SLACK * least_s


def suffices(offers: Sequence[NodeOffer], counts: Sequence[int], need: Need) -> bool:
    if not any(counts):
        return False
    load = need.workload
    within_s = min(
        load.train_s,
        (load.max_staleness - load.publish_every + 1) * load.train_s
        - broadcast_s(offers, counts, need)
        - need.rollout_s,
    )
    if within_s <= 0:
        return False
    mean = sum(n * (o.rollouts_per_s or 0.0) for o, n in zip(offers, counts, strict=True))
    var = sum(n * o.rollouts_per_s_std**2 for o, n in zip(offers, counts, strict=True))
    return mean - need.z * sqrt(var) >= (1 + need.headroom) * load.rollouts_per_step / within_s


def is_allowed(offers: Sequence[NodeOffer], counts: Sequence[int], limits: Limits) -> bool:
    usd = sum(n * o.usd_per_hour for o, n in zip(offers, counts, strict=True))
    dearest = max((o.usd_per_hour for o, n in zip(offers, counts, strict=True) if n), default=0.0)
    return (
        sum(counts) <= (inf if limits.max_nodes is None else limits.max_nodes)
        and usd <= (inf if limits.max_usd_per_hour is None else limits.max_usd_per_hour)
        and dearest
        <= (inf if limits.max_node_usd_per_hour is None else limits.max_node_usd_per_hour)
    )


def cheapest(offers: Sequence[NodeOffer], need: Need, limits: Limits) -> float:
    """Return what the cheapest set costs, of all there are; infinite if none suffices."""
    best = inf
    for counts in product(*(range(o.count + 1) for o in offers)):
        usd = sum(n * o.usd_per_hour for o, n in zip(offers, counts, strict=True))
        if usd < best and is_allowed(offers, counts, limits) and suffices(offers, counts, need):
            best = usd
    return best


def random_case(
    seed: int, *, max_offers: int = 12, max_count: int = 1
) -> tuple[list[NodeOffer], Need, Limits]:
    """Return a market in which each condition binds now and then."""
    rng = random.Random(seed)
    train_s, staleness = rng.uniform(5, 20), rng.randint(1, 4)
    load_s = rng.choice([0.0, 0.0, 1.5])
    offers = []
    for number in range(rng.randint(1, max_offers)):
        rate = rng.uniform(0.2, 4)
        offers.append(
            offer(
                f"n{number:02d}",
                rng.uniform(0.1, 3),
                rate,
                rollouts_per_s_std=rate * rng.choice([0.0, rng.uniform(0, 0.4)]),
                upload_bytes_per_s=rng.choice([0.0, rng.uniform(0, 10e6)]),
                download_bytes_per_s=rng.uniform(2e6, 50e6),
                load_s=load_s,
                count=rng.randint(1, max_count),
            )
        )
    total = sum(o.count * (o.rollouts_per_s or 0.0) for o in offers)
    wanted = Need(
        workload=LearnerLoad(
            rollouts_per_step=max(1, ceil(total * train_s * rng.uniform(0.1, 0.9))),
            train_s=train_s,
            max_staleness=staleness,
            publish_every=rng.randint(1, max(1, staleness - 1)),
        ),
        rollout_s=rng.uniform(0, train_s * 0.8),
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
    return offers, wanted, limits
