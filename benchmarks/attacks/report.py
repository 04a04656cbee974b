"""What was found, as a table and marks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console

from benchmarks.attacks.bombs import Bomb, Trapped
from benchmarks.attacks.bombs import marks_of as marks_of_trap
from benchmarks.attacks.registry import Attack
from benchmarks.attacks.verdict import Found, marks_of
from benchmarks.harness import Mark, Outcome

COLUMNS: Final = ("attack", "steps/s", "kept", "MB", "MB/min", "in, s", "dials", "cores")


@dataclass(slots=True)
class Results:
    """What has been found so far."""

    attacks: list[tuple[Attack, Found]] = field(default_factory=list)
    traps: list[Trapped] = field(default_factory=list)

    def add(self, attack: Attack, found: Found, console: Console) -> bool:
        """Take in what one attack did, and say it; returns whether it met its marks."""
        self.attacks.append((attack, found))
        marks = marks_of(attack, found)
        steps = f"{found.steps_before_per_s:.1f} -> {found.steps_during_per_s:.1f} steps/s"
        _say(console, f"{attack.name}: {steps}", marks)
        return all(mark.is_met for mark in marks)

    def add_trap(self, trapped: Trapped, console: Console) -> None:
        """Take in what became of a node, and say it."""
        self.traps.append(trapped)
        _say(console, f"{trapped.bomb}: {trapped.memory_mb:+.0f} MB", marks_of_trap(trapped))


def outcome_of(results: Results, *, left_out: Sequence[Attack | Bomb]) -> Outcome:
    """Return the table and the marks."""
    what = (
        "A learner and two honest nodes on this machine, before and under each attack; medians "
        "of windows. Attackers have the lowest priority."
    )
    if left_out:
        what += " Left out: " + ", ".join(each.name for each in left_out) + "."
    return Outcome(
        name="attacks",
        what=what,
        columns=COLUMNS,
        rows=(
            *(_row(found) for _, found in results.attacks),
            *(_row_of_trap(trapped) for trapped in results.traps),
        ),
        marks=(
            *(
                _of(attack.name, mark)
                for attack, found in results.attacks
                for mark in marks_of(attack, found)
            ),
            *(
                _of(trapped.bomb, mark)
                for trapped in results.traps
                for mark in marks_of_trap(trapped)
            ),
        ),
        figures={"attacks": [found for _, found in results.attacks], "traps": results.traps},
    )


def _say(console: Console, what: str, marks: Sequence[Mark]) -> None:
    missed = ", ".join(f"{mark.name} {mark.value:.3g}" for mark in marks if not mark.is_met)
    console.print(
        what, "; ", f"MISSED: {missed}" if missed else "all marks met", sep="", soft_wrap=True
    )


def _of(name: str, mark: Mark) -> Mark:
    return Mark(
        name=f"{name}: {mark.name}",
        value=mark.value,
        at_least=mark.at_least,
        at_most=mark.at_most,
    )


def _row(found: Found) -> tuple[str | float, ...]:
    return (
        found.attack,
        f"{found.steps_before_per_s:.1f} > {found.steps_during_per_s:.1f}",
        f"{found.kept:.2f}",
        f"{found.memory_mb:+.0f}",
        f"{found.disk_mb_per_min:+.1f}",
        f"{max(found.in_during_s, found.in_after_s):.1f}",
        str(found.num_dials),
        f"{found.learner_cores[1]:.2f}",
    )


def _row_of_trap(trapped: Trapped) -> tuple[str | float, ...]:
    return (trapped.bomb, "", "", f"{trapped.memory_mb:+.0f}", "", "", "", "")
