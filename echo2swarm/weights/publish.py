"""A snapshot on disk becomes a signed version in the learner's own library.

Nothing here waits for a peer: what is published is here to be fetched, and who
fetches it, and when, is the peers' affair.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.delta.offered import offer_deltas
from echo2swarm.weights.store.library import HeldVersion, VersionLibrary
from protocols import manifest as manifest_protocol
from protocols.ids import PolicyVersion
from protocols.manifest import Delta, PayloadRef, PolicyManifest
from protocols.sampling import SamplingParams

WEIGHTS_SUFFIX: Final = ".safetensors"
INDEX_SUFFIX: Final = ".safetensors.index.json"
ASSET_SUFFIXES: Final = frozenset({".json", ".jinja", ".model", ".tiktoken", ".txt"})
"""What a model config and a tokenizer are made of. Never code: nodes would have to trust it."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRules:
    """What a run's manifests say beside the weights; the same for all its versions."""

    sampling: SamplingParams
    max_staleness: int
    publish_every: int
    num_versions_kept: int | None = None
    """None for as many as may still be sampled with: ``max_staleness + 1``."""


def weights_files(snapshot: Path) -> tuple[Path, ...]:
    """Return the weights files of a snapshot folder, in the order in which they travel.

    Raises:
        StoreError: it has none, or it is not clear which are meant.
    """
    if not snapshot.is_dir():
        raise StoreError(f"{snapshot} is not a folder; a snapshot is a folder of safetensors files")
    found = sorted(p for p in snapshot.iterdir() if p.name.endswith(WEIGHTS_SUFFIX))
    indices = sorted(p for p in snapshot.iterdir() if p.name.endswith(INDEX_SUFFIX))
    if not found:
        raise StoreError(
            f"{snapshot} has no safetensors files; convert the model, or choose another folder"
        )
    if len(indices) > 1:
        raise StoreError(f"{snapshot} has {len(indices)} safetensors indices; leave one of them")
    if not indices:
        if len(found) > 1:
            raise StoreError(
                f"{snapshot} has {len(found)} safetensors files and no index that says which "
                "belong together; save each snapshot to an empty folder"
            )
        return tuple(found)
    # Files beside the index are leftovers of an earlier save.
    named = sorted(_names_in(indices[0]))
    missing = [name for name in named if not (snapshot / name).is_file()]
    if missing:
        raise StoreError(f"{indices[0]} names {missing[0]}, which is not there")
    return tuple(snapshot / name for name in named)


def published_asset_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a model folder that make up config and tokenizer.

    Raises:
        StoreError: there is no model config.
    """
    if not (folder / "config.json").is_file():
        raise StoreError(f"{folder} has no config.json; it is not a model folder")
    return tuple(
        sorted(
            path
            for path in folder.iterdir()
            if path.suffix in ASSET_SUFFIXES
            and path.is_file()
            and not path.name.startswith(".")
            and not path.name.endswith(INDEX_SUFFIX)
        )
    )


def build_manifest(
    *,
    run_id: str,
    version: PolicyVersion,
    weights: PayloadRef,
    weights_sha256: bytes,
    assets: PayloadRef,
    rules: PolicyRules,
    deltas: tuple[Delta, ...] = (),
) -> PolicyManifest:
    """Return the manifest of a version."""
    return PolicyManifest(
        run_id=run_id,
        version=version,
        weights=weights,
        weights_sha256=weights_sha256,
        deltas=deltas,
        assets=assets,
        sampling=rules.sampling,
        max_staleness=rules.max_staleness,
        publish_every=rules.publish_every,
        num_versions_kept=rules.num_versions_kept or rules.max_staleness + 1,
    )


async def publish_version(
    library: VersionLibrary,
    *,
    version: PolicyVersion,
    snapshot: Path,
    assets: Path,
    rules: PolicyRules,
    key: Ed25519PrivateKey,
) -> HeldVersion:
    """Make the snapshot the learner's ``version``, ready for peers to fetch.

    Args:
        library: the learner's own; it owns the files from now on.
        version: optimizer steps behind these weights.
        snapshot: folder of safetensors files. They are linked, not copied, where the
            disk allows: delete them as you like, but never write to them again.
        assets: model folder from which config and tokenizer are taken; the same files
            make the same payload, which travels once.
        rules: what else the manifest says.
        key: the learner's.

    Raises:
        StoreError: the snapshot is not usable, or the disk can't be written.
    """
    store = library.store
    weights, weights_sha256 = await store.adopt(weights_files(snapshot))
    with store.pin(weights.root):
        model, _ = await store.adopt(published_asset_files(assets))
        with store.pin(model.root):
            started_s = trio.current_time()
            async with offer_deltas(
                library,
                version=version,
                weights=weights,
                max_staleness=rules.max_staleness,
                publish_every=rules.publish_every,
            ) as deltas:
                manifest = build_manifest(
                    run_id=library.run,
                    version=version,
                    weights=weights.ref,
                    weights_sha256=weights_sha256,
                    assets=model.ref,
                    rules=rules,
                    deltas=deltas,
                )
                took_s = trio.current_time() - started_s
                held = await library.add(manifest, manifest_protocol.sign_manifest(manifest, key))
    _log.info(
        "version.published",
        version=version,
        size_bytes=weights.ref.size_bytes,
        num_chunks=weights.ref.num_chunks,
        root_sha256=weights.root.hex()[:16],
        delta_bytes={d.base_version: d.payload.size_bytes for d in deltas},
        deltas_took_s=round(took_s, 3),
    )
    return held


def _names_in(index: Path) -> set[str]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StoreError(f"{index} is not a safetensors index") from None
    if not names or any(not isinstance(n, str) or Path(n).name != n for n in names):
        raise StoreError(f"{index} does not name files of its own folder")
    return names
