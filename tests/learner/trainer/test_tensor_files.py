"""Checkpoints by rows: any number of writers, any number of readers, nothing missing."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo2swarm.system.errors import StoreError
from learner.trainer.tensor_files import MODEL, TensorRows, open_stored, rank_file, write_rows

pytestmark = pytest.mark.model
BIG = torch.arange(35, dtype=torch.float32).reshape(7, 5)
SMALL = torch.arange(2, dtype=torch.float32)


def cut(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    rows = -(-num_rows // size)
    return min(rank * rows, num_rows), min((rank + 1) * rows, num_rows)


def write(folder: Path, size: int, *, leave_out: int | None = None) -> None:
    for rank in range(size):
        if rank == leave_out:
            continue
        parts = {}
        for name, tensor in (("big", BIG), ("small", SMALL)):
            start, stop = cut(len(tensor), rank, size)
            parts[name] = TensorRows(tensor[start:stop].clone(), start, len(tensor))
        write_rows(folder / rank_file(rank, size, MODEL), parts)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(num_writers=st.integers(1, 9), num_readers=st.integers(1, 9))
def test_any_number_reads_what_any_number_wrote(
    tmp_path_factory: pytest.TempPathFactory, num_writers: int, num_readers: int
) -> None:
    folder = tmp_path_factory.mktemp("stored")
    write(folder, num_writers)

    with open_stored(folder) as stored:
        assert stored.shapes() == {"big": (7, 5), "small": (2,)}
        for name, tensor in (("big", BIG), ("small", SMALL)):
            assert torch.equal(stored.read(MODEL, name), tensor)
            for rank in range(num_readers):
                start, stop = cut(len(tensor), rank, num_readers)
                assert torch.equal(stored.read(MODEL, name, start, stop), tensor[start:stop])


@pytest.mark.parametrize("leave_out", [0, 1, 2])
def test_a_checkpoint_without_one_ranks_rows_is_refused(tmp_path: Path, leave_out: int) -> None:
    write(tmp_path, 3, leave_out=leave_out)

    with pytest.raises(StoreError, match=r"rows of big .* are missing"), open_stored(tmp_path):
        pass


def test_files_of_two_checkpoints_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 3)

    with pytest.raises(StoreError, match=r"mixed"), open_stored(tmp_path):
        pass


def test_a_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no weights"), open_stored(tmp_path):
        pass
