"""A trainer that sleeps: for benchmarks of the swarm, where only its pace matters.

Its weights are the model's own files, in which some values change a little at
each step, so that what is published is real and new. It needs no torch.
"""

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from echo2swarm.models.folder import read_config, weight_files
from echo2swarm.system.errors import StoreError
from learner.config import TrainerConfig
from learner.trainer.batch import make_batch
from learner.trainer.folders import new_folder, read_state, write_state
from learner.trainer.messages import Start, Started, TrainGroup, Updated

OnProgress = Callable[[str, float, float], None]

_STRIDE: Final = 97
"""One value in so many changes per step: about as many as a real update changes in bfloat16."""
_VIEWS: Final[dict[str, type[np.uint16 | np.uint32]]] = {
    "BF16": np.uint16,
    "F16": np.uint16,
    "F32": np.uint32,
}


class SleepTrainer:
    """Weights that change, a step count, and nothing learnt."""

    def __init__(self, start: Start, table: TrainerConfig) -> None:
        self._table = table
        self._max_new_tokens = start.max_new_tokens
        self._vocab_size = int(read_config(Path(start.model_dir))["vocab_size"])
        self.step = 0
        """Updates done."""
        folder = Path(start.model_dir)
        if start.checkpoint_dir is not None:
            folder = Path(start.checkpoint_dir)
            state = read_state(folder)
            if state is None:
                raise StoreError(f"checkpoint {folder} is not complete; resume from another one")
            self.step = int(state["step"])
        self._files = {
            path.name: np.fromfile(path, dtype=np.uint8) for path in weight_files(folder)
        }
        self._tensors = [view for data in self._files.values() for view in _tensors(data)]

    def started(self) -> Started:
        """Describe the trainer."""
        return Started(
            step=self.step,
            num_parameters=sum(tensor.size for tensor in self._tensors),
            vocab_size=self._vocab_size,
            rss_bytes=sum(data.nbytes for data in self._files.values()),
        )

    def update(self, step: int, groups: Sequence[TrainGroup], on_progress: OnProgress) -> Updated:
        """Sleep, and change the weights a little.

        Raises:
            ValueError: ``step`` is not the next one, or the groups could not be trained on.
        """
        if step != self.step:
            raise ValueError(f"update from step {step} was asked for, but {self.step} are done")
        started_s = time.perf_counter()
        batch = make_batch(
            groups,
            self._table,
            step=step,
            vocab_size=self._vocab_size,
            max_new_tokens=self._max_new_tokens,
        )
        on_progress("sleeping", 0, self._table.train_s)
        time.sleep(self._table.train_s)
        self.step += 1
        # Other groups make other weights, as in earnest.
        first = zlib.crc32(msgspec.msgpack.encode(groups), self.step) % _STRIDE
        for tensor in self._tensors:
            tensor[first::_STRIDE] ^= 1
        metrics = {**batch.metrics, "update_s": time.perf_counter() - started_s}
        return Updated(step=self.step, metrics=metrics, drift_by_peer={})

    def write_weights(self, folder: Path) -> list[str]:
        """Write the present weights into the new ``folder``; return the files' names in order."""
        with new_folder(folder) as partial:
            _write(partial, self._files)
        return sorted(self._files)

    def copy_state(self) -> Callable[[Path], None]:
        """Copy all state, and return what writes the copy into a new folder."""
        step, files = self.step, {name: data.copy() for name, data in self._files.items()}

        def write(folder: Path) -> None:
            with new_folder(folder) as partial:
                _write(partial, files)
                write_state(partial, {"step": step})

        return write


def _write(folder: Path, files: Mapping[str, npt.NDArray[np.uint8]]) -> None:
    for name, data in files.items():
        # Unlike tofile(), this says why it can't.
        (folder / name).write_bytes(data.data)


def _tensors(data: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return the floating-point tensors of a safetensors file as integers that share its memory."""
    header_bytes = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + header_bytes].tobytes())
    body = data[8 + header_bytes :]
    tensors = []
    for name, entry in header.items():
        if name != "__metadata__" and (kind := _VIEWS.get(entry["dtype"])) is not None:
            begin, end = entry["data_offsets"]
            tensors.append(body[begin:end].view(kind))
    return tensors
