"""What a node takes from the network: weights without code, and configuration."""

import msgspec
import pytest

from echo2swarm.weights.file_names import check_names, is_asset_name
from protocols.errors import MalformedMessageError
from protocols.manifest import FileRef, PayloadRef, PolicyManifest
from protocols.sampling import SamplingParams

WEIGHTS = PayloadRef(bytes(32), 2, 2**18, (FileRef("model.safetensors", 2),))
ASSETS = PayloadRef(bytes(32), 2, 2**18, (FileRef("config.json", 1), FileRef("merges.txt", 1)))
MANIFEST = PolicyManifest(
    run_id="run",
    version=0,
    weights=WEIGHTS,
    weights_sha256=bytes(32),
    deltas=(),
    assets=ASSETS,
    sampling=SamplingParams(1.0, 8, (2,)),
    max_staleness=2,
    publish_every=1,
    num_versions_kept=3,
)


def with_file(kind: str, name: str) -> PolicyManifest:
    payload = msgspec.structs.replace(
        getattr(MANIFEST, kind), files=(*getattr(MANIFEST, kind).files, FileRef(name, 0))
    )
    return msgspec.structs.replace(MANIFEST, **{kind: payload})


def test_a_usual_model_is_taken() -> None:
    check_names(MANIFEST)
    check_names(with_file("weights", "model-00002-of-00002.safetensors"))
    for name in ("tokenizer.json", "tokenizer.model", "vocab.txt", "chat_template.jinja"):
        check_names(with_file("assets", name))


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "model.pt", "weights.pkl", "modeling_x.py", "config.json", "x.so"],
)
def test_weights_are_safetensors_only(name: str) -> None:
    with pytest.raises(MalformedMessageError, match=name):
        check_names(with_file("weights", name))


@pytest.mark.parametrize(
    "name",
    [
        "modeling_x.py",
        "configuration_x.pyc",
        "sitecustomize.py",
        "pytorch_model.bin",
        "x.pkl",
        "x.pth",
        "x.so",
        "run.sh",
        "adapter_model.safetensors",
        "model.safetensors.index.json",
        ".hidden.json",
        "Makefile",
    ],
)
def test_assets_are_configuration_only(name: str) -> None:
    assert not is_asset_name(name)
    with pytest.raises(MalformedMessageError, match=name):
        check_names(with_file("assets", name))
