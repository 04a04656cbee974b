"""JSON that is nested too deeply is damaged like any other, wherever it is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from echo2swarm.models.cache import SEAL, is_intact
from echo2swarm.models.folder import CONFIG, check_model_folder, read_config
from echo2swarm.status.client import STATUS_FILE, read_status
from echo2swarm.system.errors import SwarmError
from echo2swarm.system.jsonl import read_jsonl
from echo2swarm.weights.delta.element_size import DEFAULT_BYTES, word_bytes_of
from echo2swarm.weights.store.layout import REF, read_ref
from learner.run.checkpoint_store import POSITION, CheckpointStore
from learner.run.run_dir import RunDir, read_run_dir
from learner.scoring.tokenization import ModelTokenizer
from learner.trainer.folders import STATE, read_state
from protocols.ids import RunId
from tests.tiny_model import TINY_MODEL_DIR

DEEP = b"[" * 200_000
HEADER = len(DEEP).to_bytes(8, "little") + DEEP


def weights(path: Path) -> None:
    (path / CONFIG).write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(HEADER)
    check_model_folder(path)


def tokenizer(path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((TINY_MODEL_DIR / name).read_bytes())
    (path / CONFIG).write_bytes(DEEP)
    ModelTokenizer(path)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a model's configuration": (CONFIG, read_config),
    "a model's weights": ("x", weights),
    "a tokenizer's configuration": ("x", tokenizer),
    "a run's file": (RunDir.RUN, read_run_dir),
    "a status": (STATUS_FILE, read_status),
    "what was logged": ("events.jsonl", lambda path: list(read_jsonl(path / "events.jsonl"))),
}


@pytest.mark.parametrize("what", READERS)
def test_what_is_too_deeply_nested_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    name, read = READERS[what]
    (tmp_path / name).write_bytes(DEEP + b"\n")

    with pytest.raises(SwarmError) as caught:
        read(tmp_path)

    assert len(str(caught.value).splitlines()) == 1


def test_what_is_made_again_is_taken_for_damaged(tmp_path: Path) -> None:
    for name in (SEAL, REF, STATE):
        (tmp_path / name).write_bytes(b"\x91" * 200_000 if name == REF else DEEP)
    (tmp_path / "model.safetensors").write_bytes(HEADER)

    assert is_intact(tmp_path) is False
    assert read_ref(tmp_path) is None
    assert read_state(tmp_path) is None
    assert word_bytes_of(tmp_path / "model.safetensors") == DEFAULT_BYTES


def test_a_checkpoint_whose_position_is_damaged_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000010"
    folder.mkdir()
    (folder / POSITION).write_bytes(DEEP)

    assert CheckpointStore(tmp_path, RunId("run")).all() == []
