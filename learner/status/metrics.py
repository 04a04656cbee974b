"""``metrics.jsonl``, and the tools that are told what is written there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from echo2swarm.system.jsonl import JsonLines
from learner.config import TrackingConfig
from learner.run.run_dir import RunDir
from learner.status.tensorboard import TensorBoard
from learner.status.tracker import CurveWriter


class Metrics(JsonLines):
    """Lines of metrics; each that is a mapping is handed to the tracker, too, if there is one."""

    def __init__(self, path: Path, *, tracker: CurveWriter | None = None) -> None:
        super().__init__(path)
        self.tracker = tracker

    def write(self, record: Mapping[str, Any] | msgspec.Struct) -> None:
        """Append one record; see :meth:`JsonLines.write`."""
        super().write(record)
        if self.tracker is not None and not isinstance(record, msgspec.Struct):
            self.tracker.note(record)


def open_metrics(run_dir: RunDir, table: TrackingConfig, *, first_step: int) -> Metrics:
    """Open the metrics of a run; ``first_step`` is the next update to be made.

    Raises:
        OSError: the file can't be written.
    """
    tracker = None
    if table.tensorboard:
        tracker = CurveWriter(TensorBoard(run_dir.tensorboard, first_step=first_step))
    return Metrics(run_dir.metrics, tracker=tracker)
