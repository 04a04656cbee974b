"""Pictures of a simulation; matplotlib is imported only when one is drawn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from echo2swarm.simulate.results import SimulationResult
from echo2swarm.system.errors import StoreError, SwarmError
from echo2swarm.system.extras import install_extra

_DPI: Final = 130
_WIDTH_IN: Final = 9.0
_BLUE, _ORANGE, _GREEN, _GREY = "#3b6fb6", "#d9822b", "#4c9a5b", "#9aa0a6"

Draw = Callable[[SimulationResult, Any], None]


def write_simulation_plots(result: SimulationResult, folder: Path) -> list[Path]:
    """Draw a result into ``folder``; returns the files.

    Raises:
        SwarmError: matplotlib is not installed.
        StoreError: a file can't be written.
    """
    if not result.steps:
        return []
    plots: dict[str, Draw] = {
        "timeline": _draw_timeline,
        "staleness": _draw_staleness,
        "supply": _draw_supply,
        "nodes": _draw_nodes,
        "cost": _draw_cost,
    }
    files = []
    for name, draw in plots.items():
        files.append(folder / f"{name}.png")
        with _figure(files[-1]) as axes:
            draw(result, axes)
    return files


@contextmanager
def _figure(path: Path) -> Iterator[Any]:
    """Yield the axes of a new figure, and save it to ``path``."""
    try:
        # Not pyplot: it keeps global state, and asks for a screen.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise SwarmError(
            f"pictures need matplotlib; leave out --out, or {install_extra('learner')}"
        ) from None
    figure = Figure(figsize=(_WIDTH_IN, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as exc:
        raise StoreError(f"{path}: can't be written: {exc.strerror}") from exc


def _draw_timeline(result: SimulationResult, axes: Any) -> None:  # noqa: ANN401 - matplotlib is untyped
    # The first batch waits for nodes to join: another scale.
    shown = result.steps[1:] or result.steps
    steps = [step.step for step in shown]
    floor = [0.0] * len(steps)
    for label, values, color in (
        ("waiting for rollouts", [step.wait_s for step in shown], _ORANGE),
        ("training", [step.train_s for step in shown], _BLUE),
        ("writing weights", [step.write_s for step in shown], _GREEN),
    ):
        axes.bar(steps, values, bottom=floor, color=color, width=1.0, label=label)
        floor = [low + value for low, value in zip(floor, values, strict=True)]
    axes.set(xlabel="step", ylabel="seconds", title="What the learner did, step by step")
    axes.set_ylim(0, max(floor) * 1.25 or 1.0)
    axes.legend(frameon=False, ncols=3, loc="upper right")


def _draw_staleness(result: SimulationResult, axes: Any) -> None:  # noqa: ANN401
    bars = axes.bar(list(result.staleness), list(result.staleness.values()), color=_BLUE)
    axes.bar_label(bars)
    axes.set(
        xlabel="staleness in versions", ylabel="rollouts", title="Staleness of trained rollouts"
    )


def _draw_supply(result: SimulationResult, axes: Any) -> None:  # noqa: ANN401
    times_h = [step.end_s / 3600 for step in result.steps]
    supplied = [step.supplied_rollouts_per_s for step in result.steps]
    needed = [(t, s.needed_rollouts_per_s) for t, s in zip(times_h, result.steps, strict=True)]
    known = [(t, rate) for t, rate in needed if rate is not None]
    axes.plot(times_h, supplied, color=_BLUE, label="supplied")
    axes.plot([t for t, _ in known], [r for _, r in known], color=_ORANGE, label="needed")
    axes.set(xlabel="hours", ylabel="rollouts/s", title="Supply and need")
    # What a start or an end makes needed for a moment would hide everything else.
    axes.set_ylim(0, 2 * max(supplied) or 1.0)
    axes.legend(frameon=False)


def _draw_nodes(result: SimulationResult, axes: Any) -> None:  # noqa: ANN401
    times_h = [step.end_s / 3600 for step in result.steps]
    axes.plot(times_h, [step.num_present for step in result.steps], color=_GREY, label="present")
    axes.plot(times_h, [step.num_active for step in result.steps], color=_BLUE, label="active")
    axes.set(xlabel="hours", ylabel="nodes", title="Nodes")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _draw_cost(result: SimulationResult, axes: Any) -> None:  # noqa: ANN401
    axes.plot(
        [step.end_s / 3600 for step in result.steps],
        [step.usd for step in result.steps],
        color=_BLUE,
    )
    axes.set(xlabel="hours", ylabel="USD", title="Spent so far")
    axes.set_ylim(bottom=0)
