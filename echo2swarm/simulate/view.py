"""Results of a simulation for people: a few lines and a table."""

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from rich.console import Console
from rich.table import Table
from rich.text import Text

from echo2swarm.simulate.results import KindResult, SimulationResult
from echo2swarm.text.format import format_percent, format_seconds

_UNKNOWN = "-"


def show_result(result: SimulationResult, console: Console) -> None:
    """Print one result."""
    console.print(Text(f"{result.scenario}, seed {result.seed}: {result.ended}", style="bold"))
    for label, text in _lines(result):
        console.print(Text.assemble((f"  {label:<12}", "dim"), text))
    console.print(_kinds_table(result.kinds))


def show_spread(results: Sequence[SimulationResult], console: Console) -> None:
    """Print what several seeds have in common, and how far they differ."""
    table = Table("figure", "mean", "spread", "least", "most", title=f"{len(results)} seeds")
    table.title_justify = "left"
    for column in table.columns[1:]:
        column.justify = "right"
    figures: dict[str, tuple[list[float | None], Callable[[float], str]]] = {
        "busy": ([r.busy_share for r in results], format_percent),
        "bubble": ([r.bubble_share for r in results], format_percent),
        "period": ([r.period_s for r in results], format_seconds),
        "expired": ([r.expired_share for r in results], format_percent),
        "cost per step": ([r.usd_per_step for r in results], _usd),
        "set changed": ([r.num_switches for r in results], "{:.1f} times".format),
    }
    for name, (values, write) in figures.items():
        known = [value for value in values if value is not None]
        if known:
            cells = (fmean(known), pstdev(known), min(known), max(known))
            table.add_row(name, *(write(cell) for cell in cells))
    console.print(table)
    for result in results:
        if not result.is_finished:
            console.print(Text(f"seed {result.seed}: {result.ended}", style="red"))


def _lines(result: SimulationResult) -> list[tuple[str, str]]:
    forecast = result.forecast
    lines = [
        (
            "learner",
            f"busy {_percent(result.busy_share)}, waiting {_percent(result.bubble_share)}, "
            f"one update every {_seconds(result.period_s)}"
            + (f"; away for {format_seconds(result.away_s)}" if result.away_s else ""),
        )
    ]
    if forecast is not None:
        lines.append(
            (
                "model says",
                f"busy {format_percent(forecast.utilisation)} at "
                f"{forecast.rollouts_per_s:.3g} rollouts/s; what binds is {forecast.binds}",
            )
        )
    lines += [
        (
            "delays",
            f"broadcast {_seconds(result.broadcast_p50_s)}, p95 {_seconds(result.broadcast_p95_s)}"
            f"; lease {_seconds(result.rollout_p50_s)}, p95 {_seconds(result.rollout_p95_s)}",
        ),
        ("staleness", ", ".join(f"{lag}: {n}" for lag, n in result.staleness.items()) or _UNKNOWN),
        (
            "prompts",
            f"{result.num_groups_leased} leased, {result.num_groups_trained} trained"
            + "".join(f", {n} dropped ({why})" for why, n in result.groups_dropped.items()),
        ),
        (
            "waste",
            f"{100 * result.expired_share:.1f} % of completions expired"
            + "".join(f", {n} refused ({why})" for why, n in result.rollouts_refused.items()),
        ),
        (
            "nodes",
            f"{result.num_activations} activations, {result.num_deactivations} deactivations, "
            f"the set at work changed {result.num_switches} times",
        ),
        (
            "cost",
            f"{_usd(result.node_usd)} for nodes, {_usd(result.learner_usd)} for the learner; "
            f"{_usd(result.usd_per_step)} per step, "
            f"{_usd(result.usd_per_million_tokens)} per million trained tokens",
        ),
        ("time", f"{format_seconds(result.duration_s)} simulated, {result.num_events} events"),
    ]
    return lines


def _kinds_table(kinds: Sequence[KindResult]) -> Table:
    table = Table(
        "nodes", "count", "issued", "accepted", "trained", "refused", "active hours", "USD"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for kind in kinds:
        table.add_row(
            Text(kind.kind),
            str(kind.num_nodes),
            str(kind.num_issued),
            str(kind.num_accepted),
            str(kind.num_trained),
            str(kind.num_refused),
            f"{kind.active_s / 3600:.1f}",
            f"{kind.usd:.2f}",
        )
    return table


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else format_percent(share)


def _seconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_seconds(seconds)


def _usd(usd: float | None) -> str:
    return _UNKNOWN if usd is None else f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.3g}"
