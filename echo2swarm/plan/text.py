"""A plan as text for people and as JSON for programs. Pure."""

from dataclasses import asdict
from math import isfinite
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from echo2swarm.plan.assumptions import Assumptions
from echo2swarm.plan.options import PlanOption
from echo2swarm.plan.plan import Baseline, Plan
from echo2swarm.scheduling.capacity import BindingLimit
from echo2swarm.scheduling.selection import Shortfall
from echo2swarm.text.format import (
    MISSING,
    format_mbit,
    format_percent,
    format_rate,
    format_seconds,
    printable,
)


def plan_json(plan: Plan, assumptions: Assumptions) -> bytes:
    """Return the plan and what it goes by; what is infinite is null."""
    record = {**asdict(plan), "is_feasible": plan.best is not None, "assumptions": assumptions}
    return msgspec.json.format(msgspec.json.encode(_finite(msgspec.to_builtins(record))), indent=2)


def plan_view(plan: Plan, assumptions: Assumptions) -> RenderableType:
    """Return the plan, its baselines and the trade-off over S."""
    parts: list[RenderableType] = []
    if plan.best is not None:
        parts.append(_best(plan.best, assumptions))
    else:
        parts.append(Text(no_plan(plan), style="bold red"))
    if plan.baselines:
        parts += [Text(""), _baselines(plan.baselines)]
    if plan.by_staleness:
        parts += [Text(""), _curve(plan)]
    return Group(*parts)


def no_plan(plan: Plan) -> str:
    """Return why there is no plan, and what would make one."""
    if not plan.by_staleness:
        return "there is no plan: no S that is allowed goes with this publish_every"
    wishes = _wishes(plan.shortfall)
    if not wishes:
        widest = plan.by_staleness[-1]
        wishes = [
            f"a max_staleness of {widest.min_staleness}"
            if widest.min_staleness > widest.max_staleness
            else "other offers"
        ]
    return f"there is no plan that keeps the learner busy; it would take {', or '.join(wishes)}"


def _wishes(lacks: Shortfall | None) -> list[str]:
    if lacks is None:
        return []
    wishes = []
    if lacks.add is not None and lacks.add.count:
        like = f" like {printable(lacks.add.like, max_chars=60)}" if lacks.add.like else ""
        nodes = "node" if lacks.add.count == 1 else "nodes"
        wishes.append(f"{lacks.add.count} more {nodes}{like}")
    if lacks.max_usd_per_hour is not None:
        wishes.append(f"max_usd_per_hour = {lacks.max_usd_per_hour:.2f}")
    if lacks.max_node_usd_per_hour is not None:
        wishes.append(f"max_node_usd_per_hour = {lacks.max_node_usd_per_hour:.2f}")
    if lacks.max_nodes is not None:
        wishes.append(f"max_nodes = {lacks.max_nodes}")
    if lacks.max_staleness is not None:
        wishes.append(f"max_staleness = {lacks.max_staleness}")
    return wishes


def _best(best: PlanOption, assumptions: Assumptions) -> Table:
    found = best.forecast
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("max_staleness", f"{best.max_staleness}   ({_slack(best)})")
    grid.add_row("publish_every", str(best.publish_every))
    grid.add_row("activate", _nodes(best))
    grid.add_row(
        "rollouts",
        f"{format_rate(best.supplied_rollouts_per_s)}/s supplied, "
        f"{_rate(best.required_rollouts_per_s)}/s required, "
        f"{_rate(best.needed_rollouts_per_s)}/s with headroom "
        f"(the paper's rule: {_rate(best.paper_rollouts_per_s)}/s)",
    )
    grid.add_row(
        "learner",
        f"busy {format_percent(found.utilisation)}, {format_seconds(found.period_s)} per step"
        + (f"; nodes wait {format_percent(found.idle_share)}" if found.idle_share > 0.005 else ""),
    )
    grid.add_row("broadcast", _broadcast(best, assumptions))
    grid.add_row(
        "cost",
        f"${_usd(best.usd_per_step)} per step, ${_usd(best.usd_per_million_tokens)} per million "
        f"trained tokens, ${best.usd_per_hour:.2f}/h (nodes ${best.nodes_usd_per_hour:.2f}/h)",
    )
    return grid


def _slack(best: PlanOption) -> str:
    if best.min_staleness > best.max_staleness:
        return f"{best.min_staleness} would do with fewer nodes"
    return f"{best.min_staleness} needed"


def _nodes(option: PlanOption) -> str:
    counted = sorted(option.nodes.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{n} x {printable(name, max_chars=60)}" for name, n in counted[:12])
    more = f", and {len(counted) - 12} kinds more" if len(counted) > 12 else ""
    return listed + more or "nobody"


def _broadcast(best: PlanOption, assumptions: Assumptions) -> str:
    payload_mb, upload = assumptions.weights.payload_mb, assumptions.learner.upload_mbit
    text = f"{format_seconds(best.broadcast_s)} from publishing to sampling"
    if payload_mb and upload:
        rate = format_mbit(upload * 1e6 / 8)
        text += f"; {payload_mb:g} MB, the learner uploads at {rate} Mbit/s"
    return text


def _baselines(baselines: tuple[Baseline, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title, justify in (("instead", "left"), ("busy", "right"), ("$/h", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    table.add_column("$/step", justify="right")
    table.add_column("the plan costs", justify="right")
    for baseline in baselines:
        table.add_row(
            f"{baseline.name}: {printable(baseline.what)}",
            format_percent(baseline.utilisation),
            f"{baseline.usd_per_hour:.2f}",
            _usd(baseline.usd_per_step),
            MISSING if baseline.saving is None else f"{-100 * baseline.saving:+.1f} %",
        )
    return table


def _curve(plan: Plan) -> Table:
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
        title="by S",
        title_justify="left",
        title_style="bold",
    )
    for title in ("S", "kappa", "nodes", "busy", "B", "$/h", "$/step", "$/Mtok", ""):
        table.add_column(title, justify="right" if title else "left", no_wrap=bool(title))
    for option in plan.by_staleness:
        table.add_row(
            str(option.max_staleness),
            str(option.publish_every),
            str(option.num_nodes),
            format_percent(option.forecast.utilisation),
            format_seconds(option.broadcast_s),
            f"{option.usd_per_hour:.2f}",
            _usd(option.usd_per_step),
            _usd(option.usd_per_million_tokens),
            "<- the plan" if option is plan.best else _remark(option),
        )
    return table


def _remark(option: PlanOption) -> str:
    if option.is_enough:
        return ""
    if not option.nodes:
        return "nobody can work"
    match option.forecast.binds:
        case BindingLimit.LATENCY:
            return "waits for versions"
        case BindingLimit.SUPPLY:
            return "waits for rollouts"
        case BindingLimit.LEARNER:
            return "busy, but with no reserve"


def _rate(value: float | None) -> str:
    return MISSING if value is None else format_rate(value)


def _usd(value: float) -> str:
    if not isfinite(value):
        return MISSING
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _finite(value: Any) -> Any:  # noqa: ANN401  # JSON has no infinity
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
