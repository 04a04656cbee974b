"""What every benchmark needs: a table, a verdict on its marks, and figures as JSON.

A benchmark measures, and then holds its figures against marks. It exits with 1
if one is missed, so that a machine can run it.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One figure and what it must reach."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the figure is within its bounds; one that is not a number never is."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def wanted(self) -> str:
        """The bounds, for people."""
        bounds = ((">=", self.at_least), ("<=", self.at_most))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that one benchmark found."""

    name: str
    what: str
    """What was measured and how, in a sentence or two."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    marks: tuple[Mark, ...]
    figures: dict[str, Any] = field(default_factory=dict)
    """Everything measured, for later comparison."""

    @property
    def is_good(self) -> bool:
        """Whether all marks are met."""
        return all(mark.is_met for mark in self.marks)


def machine() -> dict[str, Any]:
    """Return what figures depend on besides the code."""
    return {
        "num_cpus": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def show(outcome: Outcome, console: Console) -> None:
    """Print the table and the marks."""
    table = Table(*outcome.columns, title=outcome.name, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in outcome.rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    console.print(Text(outcome.what))
    console.print(table)
    for mark in outcome.marks:
        verdict = ("met", "green") if mark.is_met else ("MISSED", "bold red")
        console.print(
            Text.assemble(verdict, f"  {mark.name}: {_shown(mark.value)} (wanted {mark.wanted})")
        )


def as_json(outcome: Outcome) -> bytes:
    """Return the outcome, and the machine it was measured on, as JSON."""
    record = {
        **asdict(outcome),
        "marks": [{**asdict(mark), "is_met": mark.is_met} for mark in outcome.marks],
        "machine": machine(),
    }
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def finish(
    outcome: Outcome, *, json_path: Path | None = None, console: Console | None = None
) -> int:
    """Show the outcome, write it to ``json_path`` if given, and return the exit status."""
    show(outcome, console or Console())
    if json_path is not None:
        json_path.write_bytes(as_json(outcome))
    return 0 if outcome.is_good else 1


def _shown(cell: str | float) -> str:
    return cell if isinstance(cell, str) else f"{cell:.3g}"


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``, and infinity where there is nothing to divide by."""
    return part / whole if whole else float("inf")


def column(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return one figure of each record that has it as a number."""
    return [
        float(row[name])
        for row in rows
        if isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool)
    ]
