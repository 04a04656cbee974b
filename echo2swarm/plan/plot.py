"""The trade-off over S as a picture. matplotlib is imported only when one is drawn."""

from math import isfinite
from pathlib import Path
from typing import Final

from echo2swarm.plan.plan import Plan
from echo2swarm.system.errors import StoreError, SwarmError
from echo2swarm.system.extras import install_extra

FILE_NAME: Final = "plan.png"
_DPI: Final = 130
_BLUE, _ORANGE, _GREY = "#3b6fb6", "#d9822b", "#9aa0a6"


def write_plot(plan: Plan, path: Path) -> Path:
    """Draw cost and utilisation over S into ``path``, or into ``plan.png`` in it.

    Raises:
        SwarmError: matplotlib is not installed.
        StoreError: it can't be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise SwarmError(
            "a picture needs matplotlib, which is not installed: "
            f"leave out --png, or {install_extra('learner')}"
        ) from None
    file = path / FILE_NAME if path.is_dir() else path
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    cost, busy = figure.subplots(2, 1, sharex=True)
    shown = [option for option in plan.by_staleness if isfinite(option.usd_per_step)]
    bounds = [option.max_staleness for option in shown]
    cost.plot(bounds, [option.usd_per_step for option in shown], "o-", color=_BLUE)
    for baseline in plan.baselines:
        if isfinite(baseline.usd_per_step):
            cost.axhline(baseline.usd_per_step, color=_GREY, linestyle="--", linewidth=1)
            cost.annotate(
                baseline.name,
                (0.995, baseline.usd_per_step),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
            )
    if plan.best is not None:
        cost.plot([plan.best.max_staleness], [plan.best.usd_per_step], "o", color=_ORANGE, ms=9)
    cost.set_ylabel("$ per step")
    cost.set_ylim(bottom=0)
    busy.plot(bounds, [100 * option.forecast.utilisation for option in shown], "o-", color=_BLUE)
    busy.set_ylabel("learner busy, %")
    busy.set_ylim(0, 105)
    busy.set_xlabel("max_staleness S")
    busy.set_xticks(bounds)
    try:
        figure.savefig(file, dpi=_DPI, format="png")
    except OSError as exc:
        raise StoreError(f"{file}: can't be written: {exc.strerror}") from exc
    return file
