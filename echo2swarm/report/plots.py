"""The report's pictures: a function of a run record each, drawn without a screen.

matplotlib is imported here only, and only when a picture is drawn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from echo2swarm.report.run_record import RunRecord, moving_mean
from echo2swarm.system.errors import SwarmError
from echo2swarm.system.extras import install_extra

MEAN_STEPS: Final = 5
_OVERLAP_UPDATES: Final = 12
"""So many fit side by side."""
_DPI: Final = 130
_WIDTH_IN: Final = 9.0
_BLUE, _ORANGE, _GREEN, _GREY = "#3b6fb6", "#d9822b", "#4c9a5b", "#9aa0a6"

Draw = Callable[[RunRecord, Any], None]


def write_run_plots(record: RunRecord, folder: Path) -> dict[str, str]:
    """Draw what the record has data for; returns file names by the name of the plot.

    Raises:
        SwarmError: matplotlib is not installed.
    """
    plots: dict[str, tuple[float, Draw, bool]] = {
        "reward": (3.6, _draw_reward, bool(record.rewards)),
        "evaluation": (3.6, _draw_evaluation, bool(record.evaluations)),
        "staleness": (2.8, _draw_staleness, bool(record.staleness)),
        "phases": (3.2, _draw_phases, bool(record.steps)),
        "bytes": (2.8, _draw_bytes, bool(record.nodes)),
        "broadcast": (2.8, _draw_broadcast, any(b.applied_s for b in record.broadcasts)),
        "shares": (
            1.2 + 0.3 * sum(len(shares.kinds) for shares in record.shares),
            _draw_shares,
            any(shares.kinds for shares in record.shares),
        ),
        "overlap": (
            1.6 + 0.45 * (len(record.generation) + 2),
            _draw_overlap,
            bool(record.training),
        ),
    }
    written = {}
    for name, (height_in, draw, has_data) in plots.items():
        if has_data:
            with _figure(folder / f"{name}.png", height_in) as axes:
                draw(record, axes)
            written[name] = f"{name}.png"
    return written


@contextmanager
def _figure(path: Path, height_in: float) -> Iterator[Any]:
    """Yield the axes of a new figure, and save it to ``path``."""
    try:
        # Not pyplot: it keeps global state, and asks for a screen.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise SwarmError(f"pictures need matplotlib; {install_extra('learner')}") from None
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.savefig(path, dpi=_DPI)


def _draw_reward(record: RunRecord, axes: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
    points = [(s.step, s.reward_mean) for s in record.steps if s.reward_mean is not None]
    steps, rewards = [step for step, _ in points], [reward for _, reward in points]
    axes.plot(steps, rewards, "o", markersize=3, color=_GREY, label="each step")
    mean = moving_mean(rewards, MEAN_STEPS)
    axes.plot(steps, mean, color=_BLUE, linewidth=2, label=f"mean of {MEAN_STEPS} steps")
    axes.set(xlabel="step", ylabel="mean reward", title="Reward of the rollouts trained on")
    axes.set_ylim(min(0.0, *rewards) - 0.02, max(1.0, *rewards) + 0.02)
    axes.legend(frameon=False, loc="lower right")


def _draw_evaluation(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    points = record.evaluations
    versions = [point.version for point in points]
    k = points[-1].samples_per_prompt
    for name, color, found in (
        (f"pass@{k}", _GREEN, [point.pass_at_k for point in points]),
        (f"mean@{k}", _BLUE, [point.mean_at_k for point in points]),
    ):
        lows, highs = [each.low for each in found], [each.high for each in found]
        axes.fill_between(versions, lows, highs, color=color, alpha=0.2, linewidth=0)
        axes.plot(versions, [each.value for each in found], color=color, linewidth=2, label=name)
        for point, each in zip(points, found, strict=True):
            # Hollow where prompts are missing: such a point is not quite comparable.
            inside = color if point.is_complete else "white"
            axes.plot(point.version, each.value, "o", color=color, markerfacecolor=inside)
    least = min(0.0, *(point.mean_at_k.low for point in points))
    most = max(1.0, *(point.mean_at_k.high for point in points))
    axes.set_ylim(least - 0.02, most + 0.02)
    axes.set(
        xlabel="version", ylabel="on held-out prompts", title="Evaluation, with 95 % confidence"
    )
    axes.legend(frameon=False, loc="lower right")


def _draw_staleness(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    counts = dict(record.staleness or ())
    ages = list(range(max(record.max_staleness, *counts) + 1))
    bars = axes.bar(ages, [counts.get(age, 0) for age in ages], color=_BLUE, width=0.7)
    axes.bar_label(bars)
    axes.axvline(record.max_staleness + 0.5, color=_ORANGE, linestyle="--")
    axes.annotate(
        f"bound: S = {record.max_staleness}",
        (record.max_staleness + 0.5, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
        color=_ORANGE,
    )
    axes.set_xlim(-0.6, ages[-1] + 1.4)
    axes.set_xticks(ages)
    axes.set(
        xlabel="staleness in versions", ylabel="rollouts", title="Staleness of trained rollouts"
    )


def _draw_phases(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    # The first batch waits for nodes to join and load the model: another scale.
    shown = record.steps[1:] or record.steps
    steps = [s.step for s in shown]
    parts = (
        ("waiting for rollouts", [s.wait_s for s in shown], _ORANGE),
        ("training", [s.train_s for s in shown], _BLUE),
        ("writing weights", [s.write_s for s in shown], _GREEN),
    )
    floor = [0.0] * len(steps)
    for label, values, color in parts:
        axes.bar(steps, values, bottom=floor, color=color, width=0.8, label=label)
        floor = [low + value for low, value in zip(floor, values, strict=True)]
    axes.set(xlabel="step", ylabel="seconds", title="What the learner did, step by step")
    axes.legend(frameon=False, ncols=3, loc="upper right")
    axes.set_ylim(0, max(floor, default=0.0) * 1.25 or 1.0)


def _draw_bytes(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    names = [_label(n.name) for n in record.nodes]
    sent = [n.payload_bytes_sent / 1e6 for n in record.nodes]
    if record.learner_bytes_sent is not None:
        names, sent = ["learner", *names], [record.learner_bytes_sent / 1e6, *sent]
    colors = [_ORANGE if name == "learner" else _BLUE for name in names]
    bars = axes.barh(range(len(names)), sent, color=colors)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="MB sent", title="Who sent the weights")


def _draw_broadcast(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    spread = [(b.version, b.spread_s) for b in record.broadcasts if b.spread_s is not None]
    axes.bar([v for v, _ in spread], [s for _, s in spread], color=_GREEN, width=0.8)
    axes.set(xlabel="version", ylabel="seconds", title="From publish to applied by the last node")


def _draw_overlap(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    rows: list[tuple[str, list[tuple[float, float]], str]] = [
        ("training", [(s.start_s, s.end_s) for s in record.training], _BLUE),
        (
            "broadcast",
            [
                (b.published_s, b.published_s + b.spread_s)
                for b in record.broadcasts
                if b.spread_s is not None
            ],
            _GREEN,
        ),
    ]
    rows += [
        (_label(name), [(s.start_s, s.end_s) for s in spans], _GREY)
        for name, spans in record.generation
    ]
    for i, (_, spans, color) in enumerate(rows):
        # Slightly see-through, so that what overlaps within a row can be told.
        bars = [(start_s, end_s - start_s) for start_s, end_s in spans]
        axes.broken_barh(bars, (i - 0.35, 0.7), facecolors=color, alpha=0.75)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    first = record.training[max(0, len(record.training) - _OVERLAP_UPDATES)]
    axes.set_xlim(first.start_s, record.training[-1].end_s)
    axes.set(
        xlabel="seconds since the start",
        title=f"What went on at the same time (last {_OVERLAP_UPDATES} updates)",
    )


def _draw_shares(record: RunRecord, axes: Any) -> None:  # noqa: ANN401
    rows = [(shares, kind) for shares in record.shares for kind in shares.kinds]
    for height, offset, label, color in (
        (0.38, -0.2, "of what was issued", _GREY),
        (0.38, 0.2, "of what was trained on", _BLUE),
    ):
        values = [
            100 * (shares.issued_share(kind) if offset < 0 else shares.trained_share(kind))
            for shares, kind in rows
        ]
        places = [i + offset for i in range(len(rows))]
        axes.barh(places, values, height=height, color=color, label=label)
    names = [f"{shares.by}: {_label(kind.name)}" for shares, kind in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set(xlabel="share in percent", title="Who and what gets its share of training")
    axes.legend(frameon=False, loc="lower right")


def _label(name: str) -> str:
    """Node names are their owners' choice: no mathematics, and not too long."""
    return name[:24].replace("$", r"\$")
