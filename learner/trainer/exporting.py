"""Writes a checkpoint as a plain model folder, in a process of its own.

It writes by transformers, so that names and files are as every tool expects them, and then
loads what it wrote, as a stranger would, to see that it is what the trainer saved.
"""

import shutil
import stat
from pathlib import Path
from typing import Final

import torch
from transformers import PreTrainedModel

from echo2swarm.models.loading import load_causal_lm
from echo2swarm.processes.worker import OnProgress
from echo2swarm.system.errors import StoreError
from learner.export.messages import Export, Exported
from learner.trainer.folders import new_folder
from learner.trainer.tensor_files import MODEL, TensorFiles, open_stored
from learner.trainer.weights import model_tensors

_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json", ".h5", ".msgpack")
_NOT_COPIED: Final = frozenset({"config.json", "readme.md", ".sealed.json"})
_PHASES: Final = 4
_CARD: Final = "README.md"


def write_model_folder(call: Export, on_progress: OnProgress) -> Exported:
    """Write a model folder.

    Raises:
        StoreError: the checkpoint is of another model, or what was written is not what it holds.
    """
    dtype: torch.dtype = getattr(torch, call.dtype)
    model_dir, folder = Path(call.model_dir), Path(call.folder)
    with open_stored(Path(call.checkpoint_dir)) as stored:
        on_progress("loading the checkpoint", 0, _PHASES)
        model = _load(model_dir, dtype)
        _fill(model, stored, call.checkpoint_dir)
        on_progress("writing", 1, _PHASES)
        with new_folder(folder) as partial:
            model.save_pretrained(partial, max_shard_size="4GB")
            _copy_assets(model_dir, partial)
            (partial / _CARD).write_text(call.card)
            _set_modes(partial)
            del model
            on_progress("loading what was written", 2, _PHASES)
            written = _load(partial, "auto")
            on_progress("comparing", 3, _PHASES)
            num_tensors = _compare(written, stored, dtype)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return Exported(
            num_parameters=sum(parameter.numel() for parameter in written.parameters()),
            num_tensors=num_tensors,
            size_bytes=sum(path.stat().st_size for path in files),
            files=tuple(path.name for path in files),
        )


def _load(folder: Path, dtype: torch.dtype | str) -> PreTrainedModel:
    return load_causal_lm(folder, dtype=dtype)


def _fill(model: PreTrainedModel, stored: TensorFiles, where: str) -> None:
    tensors = model_tensors(model)
    if stored.shapes() != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise StoreError(f"{where}: its weights are not those of this run's model")
    for name, tensor in tensors.items():
        tensor.copy_(stored.read(MODEL, name))  # rounds


def _copy_assets(model_dir: Path, folder: Path) -> None:
    """Copy what belongs to the model beside its weights: tokenizer, templates, and so on."""
    for path in sorted(model_dir.iterdir()):
        is_weights = path.name.endswith(_WEIGHTS)
        if path.is_file() and not is_weights and path.name.lower() not in _NOT_COPIED:
            shutil.copyfile(path, folder / path.name)


def _set_modes(folder: Path) -> None:
    """Let others read what the umask lets them; some libraries write for the owner alone."""
    mode = stat.S_IMODE((folder / _CARD).stat().st_mode)
    for path in folder.iterdir():
        path.chmod(mode)


def _compare(model: PreTrainedModel, stored: TensorFiles, dtype: torch.dtype) -> int:
    """Return how many tensors are as the checkpoint has them, which is all."""
    tensors = model_tensors(model)
    if tensors.keys() != stored.shapes().keys():
        odd = sorted(tensors.keys() ^ stored.shapes().keys())
        raise StoreError(f"what was written loads with other tensors, such as {odd[0]}")
    for name, tensor in tensors.items():
        saved = stored.read(MODEL, name)
        wanted = saved.to(dtype) if saved.is_floating_point() else saved
        if tensor.dtype != wanted.dtype or not torch.equal(tensor, wanted):
            raise StoreError(f"what was written loads with another {name} than the checkpoint has")
    return len(tensors)
