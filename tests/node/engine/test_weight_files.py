"""What an engine that can't look at weights itself is kept from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from node.engine.weight_files import check_same_kinds, read_kinds

pytestmark = pytest.mark.model

GOOD = {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}


def write(folder: Path, **files: dict[str, torch.Tensor]) -> Path:
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return folder


def test_names_types_and_shapes_of_all_files_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path, one={"a": GOOD["a"]}, two={"b": GOOD["b"]})

    assert read_kinds(folder) == {"a": ("F32", (2, 3)), "b": ("BF16", (4,))}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, value: float) -> None:
    bad = torch.zeros(4, dtype=torch.bfloat16)
    bad[3] = value

    with pytest.raises(ValueError, match="tensor b has values that are not finite"):
        read_kinds(write(tmp_path, one={**GOOD, "b": bad}))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \.safetensors file"):
        read_kinds(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor a is in two files"):
        read_kinds(write(tmp_path, one=GOOD, two={"a": GOOD["a"]}))


def test_numbers_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor a is of type I64"):
        read_kinds(write(tmp_path, one={"a": torch.ones(2, dtype=torch.int64)}))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"a": GOOD["a"]}, "tensor b is missing"),
        ({**GOOD, "c": torch.ones(1)}, "the model has no tensor c"),
        ({**GOOD, "a": torch.ones(3, 2)}, r"tensor a has type and shape .*\(3, 2\)"),
        ({**GOOD, "a": torch.ones(2, 3, dtype=torch.float16)}, "tensor a has type and shape"),
    ],
)
def test_what_differs_from_the_model_is_named(
    tmp_path: Path, found: dict[str, torch.Tensor], says: str
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "found").mkdir()
    wanted = read_kinds(write(tmp_path / "model", one=GOOD))

    check_same_kinds(wanted, wanted)
    with pytest.raises(ValueError, match=says):
        check_same_kinds(read_kinds(write(tmp_path / "found", one=found)), wanted)
