"""Nothing from the network is ever executed: a canary that must not sing."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import trio

from echo2swarm.system.errors import ChildError
from node.engine.base import EngineReady, PolicyFiles
from node.engine.options import TransformersOptions
from node.engine.process import engine_spec, open_engine
from protocols.ids import PolicyVersion
from tests.tiny_model import TINY_MODEL_DIR


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.canary,))


def booby_trap(folder: Path, canary: Path) -> None:
    """Put into an assets folder everything that some library might execute."""
    code = f"from pathlib import Path\nPath({str(canary)!r}).touch()\n"
    names = ("modeling_canary", "configuration_canary", "tokenization_canary", "sitecustomize")
    for name in (*names, "torch", "__init__"):
        (folder / f"{name}.py").write_text(code + "class Canary: pass\n")
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "adapter_model.bin"):
        (folder / name).write_bytes(pickle.dumps(Bomb(canary)))
    (folder / "chat_template.jinja").write_text("{{ cycler.__init__.__globals__ }}")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "trust_remote_code": True,
        "auto_map": {
            "AutoConfig": "configuration_canary.Canary",
            "AutoModelForCausalLM": "modeling_canary.Canary",
            "AutoTokenizer": ["tokenization_canary.Canary", None],
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.model
@pytest.mark.parametrize("has_own_type", [False, True], ids=["known type", "type of its own"])
async def test_a_booby_trapped_model_runs_no_code_of_its_own(
    tmp_path: Path, has_own_type: bool
) -> None:
    canary = tmp_path / "canary"
    assets, weights = tmp_path / "assets", tmp_path / "weights"
    shutil.copytree(TINY_MODEL_DIR, assets)
    weights.mkdir()
    shutil.move(assets / "model.safetensors", weights / "model.safetensors")
    booby_trap(assets, canary)
    booby_trap_weights(weights, canary)
    if has_own_type:
        config = json.loads((assets / "config.json").read_text())
        (assets / "config.json").write_text(json.dumps(config | {"model_type": "canary"}))
    ready = trio.Event()

    with trio.fail_after(120):
        async with open_engine(
            engine_spec("transformers", TransformersOptions(device="cpu", threads=1)),
            log_path=tmp_path / "engine.log",
            on_event=lambda event: ready.set() if isinstance(event, EngineReady) else None,
        ) as engine:
            await ready.wait()
            files = PolicyFiles(version=PolicyVersion(0), weights_dir=weights, assets_dir=assets)
            if has_own_type:
                with pytest.raises(ChildError):
                    await engine.load_policy(files)
            else:
                await engine.load_policy(files)
                assert engine.applied_version == 0

    assert not canary.exists()


def booby_trap_weights(folder: Path, canary: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))


def test_the_canary_would_sing(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "canary")))  # noqa: S301 - that is the point

    assert (tmp_path / "canary").exists()
