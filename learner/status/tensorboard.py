"""Event files of TensorBoard, by tensorboardX: neither TensorFlow nor torch is needed.

Its ``SummaryWriter`` hands events to a thread that dies of a full disk and then blocks whoever
writes; so we write them ourselves, and after an error begin a new file.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from echo2swarm.system.errors import ConfigError
from echo2swarm.system.extras import install_extra

if TYPE_CHECKING:
    from tensorboardX.record_writer import RecordWriter

_FORMAT: Final = "brain.Event:2"


def require_tensorboard() -> None:
    """See whether event files can be written here.

    Raises:
        ConfigError: tensorboardX is not installed.
    """
    try:
        import tensorboardX.record_writer  # noqa: F401, PLC0415 - not installed everywhere
    except ImportError:
        raise ConfigError(
            f"tracking.tensorboard needs a package; {install_extra('tensorboard')}"
        ) from None


class TensorBoard:
    """Curves in a folder that ``tensorboard --logdir`` shows. Methods block.

    Args:
        folder: for event files; made if missing. Files of earlier starts stay.
        first_step: points at and after it, of earlier starts, are not shown any more: they are
            done again.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self._folder = folder
        self._first_step = first_step
        self._writer: RecordWriter | None = None
        self._num_files = 0

    def write(self, scalars: dict[str, float], *, step: int, unix_s: float) -> None:
        """Append one point of each curve.

        Raises:
            OSError: it could not be written; the next call begins a new file.
        """
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415 - as above
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=unix_s, step=step, summary=Summary(value=values))
        try:
            writer = self._open()
            writer.write(event.SerializeToString())
            writer.flush()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            # Of a full disk we have been told; the file is closed all the same.
            with suppress(OSError):
                self._writer.close()
            self._writer = None

    def _open(self) -> "RecordWriter":
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # noqa: PLC0415
        from tensorboardX.record_writer import RecordWriter  # noqa: PLC0415

        if self._writer is not None:
            return self._writer
        self._folder.mkdir(parents=True, exist_ok=True)
        now_s = time.time()
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{now_s:.6f}.{os.getpid()}.{self._num_files}"
        self._writer = RecordWriter(str(self._folder / name))
        self._num_files += 1
        events = [Event(wall_time=now_s, file_version=_FORMAT)]
        if self._num_files == 1:
            start: Any = SessionLog(status=SessionLog.START)
            events.append(Event(wall_time=now_s, step=self._first_step, session_log=start))
        for event in events:
            self._writer.write(event.SerializeToString())
        return self._writer
