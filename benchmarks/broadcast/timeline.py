"""A picture of who held how much when."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.broadcast.results import CaseResult


def draw(results: Sequence[CaseResult], path: Path) -> None:
    """Draw the first run of each case: the bytes each peer holds, over time."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and is seldom wanted

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    shown = [result for result in results if result.runs]
    figure, rows = plt.subplots(
        max(1, len(shown)), squeeze=False, figsize=(9, 4 * max(1, len(shown)))
    )
    for result, (axes,) in zip(shown, rows, strict=False):
        case, run = result.case, result.runs[0]
        for number, line in enumerate(run.timeline):
            axes.plot(
                [at_s for at_s, _ in line],
                [held_bytes / 1e6 for _, held_bytes in line],
                label=f"peer {number}" + ("" if number in case.honest else " (faulty)"),
                linestyle="-" if number in case.honest else ":",
                linewidth=1,
            )
        axes.plot(
            [at_s for at_s, _ in run.learner_timeline],
            [sent_bytes / 1e6 for _, sent_bytes in run.learner_timeline],
            color="black",
            linestyle="--",
            linewidth=1,
            label="sent by the learner",
        )
        axes.axvline(case.least_s, color="grey", linewidth=1, label="T*")
        axes.plot([0, case.least_s], [0, case.size_bytes / 1e6], color="lightgrey", linewidth=1)
        axes.set_title(f"{case.what}: {run.last_s:.1f} s, {run.last_s / case.least_s:.2f} x T*")
        axes.set_xlabel("seconds since the publication")
        axes.set_ylabel("MB")
        axes.legend(fontsize="x-small", ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
