"""From what was read off a swarm under attack to figures, and what they must reach."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from benchmarks.attacks.lab import Readings, Sample
from benchmarks.attacks.registry import Attack
from benchmarks.harness import Mark, ratio

MIN_STEPS_KEPT: Final = 0.9
MAX_MEMORY_MB: Final = 100.0
MAX_DISK_MB_PER_MIN: Final = 1.0
MIN_DISK_S: Final = 12.0
"""A first line about each of many strangers is no flood: what is written says less of a shorter
attack than of none."""
MAX_IN_S: Final = 5.0
MAX_DIALS: Final = 10
"""Of a victim: a handful."""
MAX_STORES_MB: Final = 5.0
NUM_PROCESSES: Final = 3
USUAL: Final = 12
"""Looks right before an attack that say what is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one attack did."""

    attack: str
    steps_before_per_s: float
    steps_during_per_s: float
    kept: float
    """Steps each second during the attack, of those right before it; medians of windows."""
    memory_mb: float
    """The most that all processes of the learner held from the attack's start on, above before."""
    disk_mb_per_min: float
    """What learner and nodes wrote a minute during the attack, beyond what is usual for as many
    updates; without the stores of weights."""
    stores_mb: float
    """The most that those held from the attack's start on, above what they held before."""
    in_during_s: float
    """Of the newcomer who took longest during the attack."""
    in_after_s: float
    status_s: float
    """The longest that a newcomer waited for the status, during the attack or after it."""
    node_in_s: float
    """The longest that a newcomer took, after the attack, to connect to one of the nodes."""
    num_dials: int
    num_survivors: int
    attack_s: float
    """How long it was."""
    num_tried: int
    num_wanted: int
    """So many deeds at least make it the attack it is meant to be."""
    attacker_cores: float
    """What the attack itself took of the processor."""
    learner_cores: tuple[float, float]
    """What the learner took before and during it."""
    others_cores: tuple[float, float]
    """What everything else on this machine took before and during it."""
    notes: dict[str, int]
    why: tuple[str, ...]
    """What newcomers were told who did not get in."""


def find(attack: Attack, readings: Readings, *, share: float) -> Found:
    """Return the figures; ``share`` is the part of its time that the attack was given."""
    start_s, end_s = readings.attack_s
    before = (readings.began_s, start_s)
    during = (start_s, end_s)
    rate_before = median(rates(readings.steps_s, before, readings.window_s) or (0.0,))
    rate_during = median(rates(readings.steps_s, during, readings.window_s) or (0.0,))
    kept = rate_during / rate_before if rate_before else float("nan")
    # What is written for an update is not, where there is none.
    usual = min(1.0, kept)
    samples = readings.samples
    visits_during = [v for v in readings.visits if start_s <= v.at_s < end_s]
    visits_after = [v for v in readings.visits if v.at_s >= end_s]
    return Found(
        attack=attack.name,
        steps_before_per_s=rate_before,
        steps_during_per_s=rate_during,
        kept=kept,
        memory_mb=_excess_mb([(s.at_s, s.memory.get("learner", 0)) for s in samples], start_s),
        disk_mb_per_min=disk_growth(samples, during) - usual * disk_growth(samples, before),
        stores_mb=_excess_mb([(s.at_s, s.store_bytes) for s in samples], start_s),
        in_during_s=_worst([v.in_s for v in visits_during]),
        in_after_s=_worst([v.in_s for v in visits_after]),
        status_s=_worst([v.status_s for v in visits_during + visits_after]),
        node_in_s=_worst(readings.nodes_in_s),
        num_dials=readings.num_dials,
        num_survivors=readings.num_survivors,
        attack_s=end_s - start_s,
        num_tried=readings.tally.num_tried,
        num_wanted=round(attack.min_tried * share),
        attacker_cores=ratio(readings.tally.cpu_s, end_s - start_s),
        learner_cores=(cores(samples, before, "learner"), cores(samples, during, "learner")),
        others_cores=(others(samples, before), others(samples, during)),
        notes=readings.tally.notes,
        why=tuple(v.why for v in visits_during + visits_after if v.why),
    )


def marks_of(attack: Attack, found: Found) -> tuple[Mark, ...]:
    """Return what one attack must not have done."""
    marks = [
        Mark(name="steps kept", value=found.kept, at_least=MIN_STEPS_KEPT),
        Mark(name="memory grew by, MB", value=found.memory_mb, at_most=MAX_MEMORY_MB),
        Mark(name="stores grew by, MB", value=found.stores_mb, at_most=MAX_STORES_MB),
        Mark(name="newcomer during, s", value=found.in_during_s, at_most=MAX_IN_S),
        Mark(name="newcomer after, s", value=found.in_after_s, at_most=MAX_IN_S),
        Mark(name="newcomer at a node, s", value=found.node_in_s, at_most=MAX_IN_S),
        Mark(name="status, s", value=found.status_s, at_most=MAX_IN_S),
        Mark(name="processes left", value=found.num_survivors, at_least=NUM_PROCESSES),
        Mark(name="deeds", value=found.num_tried, at_least=found.num_wanted),
    ]
    if found.attack_s >= MIN_DISK_S:
        marks.append(
            Mark(name="disk, MB/min", value=found.disk_mb_per_min, at_most=MAX_DISK_MB_PER_MIN)
        )
    if attack.has_victim:
        marks.append(Mark(name="dials of the victim", value=found.num_dials, at_most=MAX_DIALS))
    return tuple(marks)


def rates(steps_s: Sequence[float], span: tuple[float, float], window_s: float) -> list[float]:
    """Return the steps each second in each whole window of ``span``.

    A step that spans the end of a window counts for the part of it that lies within.
    """
    start_s, end_s = span
    # A span is as long as it is meant to be, give or take the clock's grain.
    num_windows = int((end_s - start_s) / window_s + 0.05)
    done = [_done_by(steps_s, start_s + i * window_s) for i in range(num_windows + 1)]
    return [(after - before) / window_s for before, after in pairwise(done)]


def _done_by(steps_s: Sequence[float], at_s: float) -> float:
    """Return how many steps were done at a time, with the part of the one under way."""
    whole = bisect_right(steps_s, at_s)
    if whole in (0, len(steps_s)):
        return float(whole)
    last_s, next_s = steps_s[whole - 1], steps_s[whole]
    return whole + (at_s - last_s) / (next_s - last_s)


def disk_growth(samples: Sequence[Sample], span: tuple[float, float]) -> float:
    """Return by how many megabytes a minute the files grew: the slope of a line through them."""
    points = [(s.at_s, s.other_bytes) for s in samples if span[0] <= s.at_s < span[1]]
    if len(points) < 3:
        return float("nan")
    mean_s = sum(at_s for at_s, _ in points) / len(points)
    mean_bytes = sum(size for _, size in points) / len(points)
    slope = sum((at_s - mean_s) * (size - mean_bytes) for at_s, size in points) / sum(
        (at_s - mean_s) ** 2 for at_s, _ in points
    )
    return slope * 60 / 1e6


def cores(samples: Sequence[Sample], span: tuple[float, float], role: str) -> float:
    """Return how many processors a role's processes kept busy."""
    here = [s for s in samples if span[0] <= s.at_s < span[1]]
    # A process that was started or has ended meanwhile would make a step of its own.
    spent = [
        (after.cpu_s.get(role, 0.0) - before.cpu_s.get(role, 0.0), after.at_s - before.at_s)
        for before, after in pairwise(here)
    ]
    usual = [(used, seconds) for used, seconds in spent if 0 <= used <= 8 * seconds]
    return ratio(sum(used for used, _ in usual), sum(seconds for _, seconds in usual))


def others(samples: Sequence[Sample], span: tuple[float, float]) -> float:
    """Return how many processors were busy with nothing of this benchmark's."""
    here = [s for s in samples if span[0] <= s.at_s < span[1]]
    if len(here) < 2:
        return float("nan")
    seconds = here[-1].at_s - here[0].at_s
    everything = (here[-1].machine_cpu_s - here[0].machine_cpu_s) / seconds
    ours = sum(cores(samples, span, role) for role in ("learner", "node", "attacker"))
    return max(0.0, everything - ours)


def _excess_mb(points: Sequence[tuple[float, int]], start_s: float) -> float:
    """Return by how much the most from then on exceeds the most of the last seconds before."""
    before = [size for at_s, size in points if at_s < start_s]
    after = [size for at_s, size in points if at_s >= start_s]
    if not before or not after:
        return float("nan")
    return (max(after) - max(before[-USUAL:])) / 1e6


def _worst(seconds: Sequence[float]) -> float:
    """Return the longest; not a number, which meets no mark, if nobody came."""
    return max(seconds, default=float("nan"))
