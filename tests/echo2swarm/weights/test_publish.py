"""A snapshot folder becomes a signed version."""

import hashlib
import json
from pathlib import Path

import pytest

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.publish import publish_version, published_asset_files, weights_files
from echo2swarm.weights.store.library import open_library
from protocols import manifest as manifest_protocol
from protocols.ids import PolicyVersion
from tests.echo2swarm.weights.delta.made import random_bytes
from tests.echo2swarm.weights.made import LEARNER_KEY, RULES, RUN, assets, snapshot

PUBLIC = LEARNER_KEY.public_key()


async def test_a_published_version_is_signed_and_names_its_bytes(tmp_path: Path) -> None:
    source = snapshot(tmp_path / "v3", seed=3)
    data = (source / "model.safetensors").read_bytes()
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        held = await publish_version(
            library,
            version=PolicyVersion(3),
            snapshot=source,
            assets=assets(tmp_path / "model"),
            rules=RULES,
            key=LEARNER_KEY,
        )

        read = manifest_protocol.verify_manifest(held.sealed, PUBLIC, run=RUN)
        assert read == held.manifest
        assert (read.version, read.deltas) == (3, ())
        assert (read.max_staleness, read.publish_every, read.num_versions_kept) == (1, 1, 2)
        assert read.weights_sha256 == hashlib.sha256(data).digest()
        assert [f.name for f in read.weights.files] == ["model.safetensors"]
        assert [f.name for f in read.assets.files] == ["config.json", "tokenizer.json"]
        assert library.newest == held
        assert (held.weights / "model.safetensors").read_bytes() == data


async def test_the_assets_of_two_versions_are_one_payload(tmp_path: Path) -> None:
    model = assets(tmp_path / "model")
    async with open_library(tmp_path / "lib", run=RUN, learner_key=PUBLIC) as library:
        first, second = [
            await publish_version(
                library,
                version=PolicyVersion(version),
                snapshot=snapshot(tmp_path / f"v{version}", seed=version),
                assets=model,
                rules=RULES,
                key=LEARNER_KEY,
            )
            for version in (0, 1)
        ]
        assert first.manifest.assets == second.manifest.assets
        assert first.manifest.weights != second.manifest.weights


def shards(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for seed, name in enumerate(names):
        (folder / name).write_bytes(random_bytes(100, seed=seed))
    return folder


def write_index(folder: Path, *names: object) -> None:
    weight_map = {f"tensor{i}": name for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_an_index_says_which_files_are_meant_so_that_leftovers_stay_behind(tmp_path: Path) -> None:
    folder = shards(tmp_path / "v", "a.safetensors", "b.safetensors", "old.safetensors")
    write_index(folder, "b.safetensors", "a.safetensors", "b.safetensors")
    assert [p.name for p in weights_files(folder)] == ["a.safetensors", "b.safetensors"]


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path / "v", "model.safetensors", "old.safetensors")
    with pytest.raises(StoreError, match="2 safetensors files and no index"):
        weights_files(folder)


@pytest.mark.parametrize(
    "names", [["a.safetensors", "gone.safetensors"], ["../a.safetensors"], [3], []]
)
def test_an_index_that_names_what_is_not_there_is_refused(
    tmp_path: Path, names: list[object]
) -> None:
    folder = shards(tmp_path / "v", "a.safetensors")
    write_index(folder, *names)
    with pytest.raises(StoreError, match=r"not there|does not name"):
        weights_files(folder)


def test_a_broken_index_is_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path / "v", "a.safetensors")
    (folder / "model.safetensors.index.json").write_text("{]")
    with pytest.raises(StoreError, match="is not a safetensors index"):
        weights_files(folder)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no safetensors files"):
        weights_files(shards(tmp_path / "v", "pytorch_model.bin"))
    with pytest.raises(StoreError, match="is not a folder"):
        weights_files(tmp_path / "nowhere")


def test_code_is_never_an_asset(tmp_path: Path) -> None:
    folder = assets(tmp_path / "model")
    (folder / ".hidden.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("")
    names = [p.name for p in published_asset_files(folder)]
    assert names == ["chat_template.jinja", "config.json", "tokenizer.json"]


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no config\.json"):
        published_asset_files(tmp_path)
