"""What a run costs over a market of nodes, and what in a data centre; the paper's headline.

``python -m benchmarks.paper_cost [--quick] [--json FILE]``

Two scenarios, 4B and 8B, with published prices; ``benchmarks/scenarios`` states the source of
every number, and which are assumed. The paper reports -33.3 % and -36.3 % against a centralised
system. Nothing here is fitted to that: the table says what these assumptions give. Nothing is
run but ``swarm plan``'s own functions.
"""

from pathlib import Path
from typing import Final

import click
from msgspec import structs
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish
from benchmarks.roofline import CHECKS
from echo2swarm.plan.assumptions import Assumptions, load_assumptions
from echo2swarm.plan.plan import Baseline, Plan, make_plan
from echo2swarm.text.cli_errors import run_cli

SCENARIOS: Final = Path(__file__).with_name("scenarios")
PAPER: Final = {"4B and 8B": (-0.333, -0.363)}
"""Which of the two is which is not known here."""
REPORTED_COLOCATED_S: Final = 1508.0
"""Of Qwen3-8B on 8 x A100, by a secondary source that cites the paper's setting."""
UPLINKS_MBIT: Final = (100.0, 250.0, 500.0, 1000.0, 2500.0, 10_000.0)
PRICE_FACTORS: Final = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
DELTA_SHARE: Final = 0.02
"""Of the whole; docs/benchmarks.md, Deltas: up to 1.84 % for a step in bfloat16."""

Row = tuple[str | float, ...]


def with_uplink(assumptions: Assumptions, upload_mbit: float) -> Assumptions:
    """Return the same with another uplink of the learner."""
    return structs.replace(
        assumptions, learner=structs.replace(assumptions.learner, upload_mbit=upload_mbit)
    )


def with_prices(assumptions: Assumptions, factor: float) -> Assumptions:
    """Return the same with nodes at ``factor`` times their price."""
    return structs.replace(
        assumptions,
        offer=tuple(
            structs.replace(offer, usd_per_hour=factor * offer.usd_per_hour)
            for offer in assumptions.offer
        ),
    )


def with_deltas(assumptions: Assumptions) -> Assumptions:
    """Return the same with deltas instead of whole snapshots."""
    weights = assumptions.weights
    return structs.replace(
        assumptions,
        weights=structs.replace(weights, payload_mb=DELTA_SHARE * weights.payload_mb),
    )


def with_bound(assumptions: Assumptions, bound: int) -> Assumptions:
    """Return the same with S fixed."""
    limits = structs.replace(assumptions.limits, min_staleness=bound, max_staleness=bound)
    return structs.replace(assumptions, limits=limits)


def cheapest(baselines: tuple[Baseline, ...]) -> Baseline:
    """Return the baseline that costs least."""
    return min(baselines, key=lambda baseline: baseline.usd_per_step)


def row(name: str, case: str, plan: Plan, baseline: Baseline) -> Row:
    """Return a line of the table; a plan that lets the learner wait is shown as such."""
    option = plan.best or min(plan.by_staleness, key=lambda o: o.usd_per_step)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(option.nodes.items()))
    return (
        name,
        case,
        f"{option.max_staleness} / {option.publish_every}",
        kinds,
        f"{option.broadcast_s:.0f} s",
        f"{100 * option.forecast.utilisation:.0f} %",
        f"{option.usd_per_step:.2f}",
        f"{baseline.usd_per_step:.2f}",
        f"{100 * (option.usd_per_step / baseline.usd_per_step - 1):+.1f} %",
    )


def sweep(name: str, assumptions: Assumptions, baseline: Baseline) -> list[Row]:
    """Return how the saving moves with S, the uplink, the prices and what travels."""
    bare = structs.replace(assumptions, central=None)
    cases = [
        *((f"S = {s}", with_bound(bare, s)) for s in range(assumptions.limits.max_staleness + 1)),
        *((f"uplink {x / 1000:g} Gbit/s", with_uplink(bare, x)) for x in UPLINKS_MBIT),
        *((f"nodes at {x:g} x the price", with_prices(bare, x)) for x in PRICE_FACTORS),
        ("deltas of 2 %", with_deltas(bare)),
    ]
    return [row(name, case, make_plan(found), baseline) for case, found in cases]


def measure(*, quick: bool) -> Outcome:
    """Plan both scenarios, and what may change."""
    rows: list[Row] = []
    marks: list[Mark] = []
    figures: dict[str, object] = {
        "paper": PAPER,
        "roofline checks": {check.source: check.efficiency for check in CHECKS},
    }
    for name in ("4B", "8B"):
        assumptions = load_assumptions(SCENARIOS / f"paper-{name.lower()}.toml")
        plan = make_plan(assumptions)
        best, baseline = plan.best, cheapest(plan.baselines)
        rows.extend(
            row(name, f"plan, against {other.name}", plan, other) for other in plan.baselines
        )
        if not quick:
            rows += sweep(name, assumptions, baseline)
        marks += [
            Mark(
                name=f"{name}: learner busy under the plan",
                value=best.forecast.utilisation if best else 0.0,
                at_least=0.97,
            ),
            Mark(
                name=f"{name}: saving against the cheapest baseline",
                value=(baseline.saving or 0.0) if best else -1.0,
                at_least=0.0,
            ),
        ]
        figures[name] = {"best": best, "baselines": plan.baselines}
        if name == "8B":
            step_s = next(b.period_s for b in plan.baselines if b.name == "co-located")
            marks.append(
                Mark(
                    name="8B: co-located step as modelled, over the one reported",
                    value=step_s / REPORTED_COLOCATED_S,
                    at_least=0.9,
                    at_most=1.1,
                )
            )
    return Outcome(
        name="paper_cost",
        what=(
            "USD per step of the cheapest plan over a market of nodes, and of the centralised "
            "alternative. The paper reports -33.3 % and -36.3 % for 4B and 8B; assumptions and "
            "sources are in benchmarks/scenarios."
        ),
        columns=("model", "case", "S / kappa", "nodes", "B", "busy", "$/step", "central", "change"),
        rows=tuple(rows),
        marks=tuple(marks),
        figures=figures,
    )


@click.command()
@click.option("--quick", is_flag=True, help="Only the two plans, without what may change.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, json_path: Path | None) -> int:
    """Compare what distributed and centralised runs cost."""
    return finish(measure(quick=quick), json_path=json_path, console=Console(width=160))


if __name__ == "__main__":
    run_cli(main, program="paper_cost")
