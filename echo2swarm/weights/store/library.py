"""The versions this machine holds: whole, verified, and signed by the learner.

A version is held from the moment its sealed manifest is written here, which is
after both its payloads were complete and the hash of its weights was checked.
The newest ones are kept (the manifest says how many), and whatever a reader has
pinned; the rest is deleted, with every payload that no version kept needs. Also
kept are the deltas of the newest two, for peers that are a step behind, and the
weights of the newest one's anchor, for those that are many::

    versions/00000012.manifest      the sealed manifest
    payloads/ trash/ lock           the payload store's
"""

import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from echo2swarm.system.errors import DoesNotFitError, StoreError
from echo2swarm.system.files import write_atomically
from echo2swarm.text.format import format_bytes
from echo2swarm.weights.store import layout
from echo2swarm.weights.store.store import PayloadStore, open_store
from protocols import manifest as manifest_protocol
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.ids import PolicyVersion, RunId
from protocols.manifest import NUM_VERSIONS_WITH_DELTAS, PolicyManifest

_SUFFIX = ".manifest"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVersion:
    """One version that is whole and verified on this machine."""

    manifest: PolicyManifest
    sealed: bytes
    """The manifest as the learner signed it."""
    weights: Path
    """Folder with the safetensors files, and nothing else."""
    assets: Path
    """Folder with model config and tokenizer."""

    @property
    def version(self) -> PolicyVersion:
        """Which version it is."""
        return PolicyVersion(self.manifest.version)


def _roots_to_keep(manifests: Sequence[PolicyManifest]) -> set[bytes]:
    """Return the payloads that these versions need, oldest first, and those that others do."""
    roots = {ref.root_sha256 for m in manifests for ref in (m.weights, m.assets)}
    roots |= {
        d.payload.root_sha256 for m in manifests[-NUM_VERSIONS_WITH_DELTAS:] for d in m.deltas
    }
    for newest in manifests[-1:]:
        if newest.deltas:
            roots.add(min(newest.deltas, key=lambda d: d.base_version).base_root_sha256)
    return roots


def quota_for(manifest: PolicyManifest) -> int:
    """Return the least that a disk quota must be: a version in use, and one that arrives."""
    delta_bytes = max((d.payload.size_bytes for d in manifest.deltas), default=0)
    return 2 * manifest.weights.size_bytes + manifest.assets.size_bytes + delta_bytes


@asynccontextmanager
async def open_library(
    folder: Path,
    *,
    run: RunId,
    learner_key: Ed25519PublicKey,
    quota_bytes: int | None = None,
) -> AsyncIterator["VersionLibrary"]:
    """Open the versions (and payloads) in ``folder``, made if missing.

    What a former process held is held again if it passes every check.

    Args:
        folder: the library's own.
        run: which run.
        learner_key: who signs its manifests.
        quota_bytes: what it may take at most, a version that is arriving included; None for
            what the manifests ask to keep for others.

    Raises:
        StoreError: the folder can't be used, or another process uses it.
    """
    async with open_store(folder) as store:
        library = VersionLibrary(store, run=run, learner_key=learner_key, quota_bytes=quota_bytes)
        await library._recover()
        yield library


class VersionLibrary:
    """The versions of one run in one store. Made by :func:`open_library`."""

    def __init__(
        self,
        store: PayloadStore,
        *,
        run: RunId,
        learner_key: Ed25519PublicKey,
        quota_bytes: int | None = None,
    ) -> None:
        self.quota_bytes = quota_bytes
        """What it may take at most; may be changed, and holds from the next version on."""
        self.store = store
        self.run = run
        self.learner_key = learner_key
        self._folder = store.folder / "versions"
        self._held: dict[PolicyVersion, HeldVersion] = {}
        self._pins: Counter[PolicyVersion] = Counter()
        self._added = trio.Event()

    @property
    def newest(self) -> HeldVersion | None:
        """The newest version held."""
        return self._held[max(self._held)] if self._held else None

    @property
    def versions(self) -> tuple[PolicyVersion, ...]:
        """The versions held, oldest first."""
        return tuple(sorted(self._held))

    def get(self, version: PolicyVersion) -> HeldVersion | None:
        """Return one version if it is held."""
        return self._held.get(version)

    async def next_version(self, after: PolicyVersion | None) -> HeldVersion:
        """Return the newest version held as soon as that is newer than ``after``.

        Pin it before the next ``await``, and it is certain to be there still.
        """
        while (newest := self.newest) is None or (after is not None and newest.version <= after):
            await self._added.wait()
        return newest

    @contextmanager
    def pin(self, version: PolicyVersion) -> Iterator[HeldVersion]:
        """Keep a version's files where they are while the context lasts.

        Raises:
            StoreError: the version is not held (any more).
        """
        held = self._held.get(version)
        if held is None:
            raise StoreError(f"version {version} is not held in {self._folder.parent}")
        self._pins[version] += 1
        try:
            with (
                self.store.pin(held.manifest.weights.root_sha256),
                self.store.pin(held.manifest.assets.root_sha256),
            ):
                yield held
        finally:
            self._pins[version] -= 1

    def check_fits(self, manifest: PolicyManifest) -> None:
        """Refuse a version that the quota has no room for, before anything of it is fetched.

        Raises:
            DoesNotFitError: the message says how much it takes.
        """
        needed_bytes = quota_for(manifest)
        if self.quota_bytes is not None and needed_bytes > self.quota_bytes:
            raise DoesNotFitError(
                f"the model needs {format_bytes(needed_bytes)} of disk (a version in use, and one "
                f"that is arriving), but the limit is {format_bytes(self.quota_bytes)}; allow "
                f"more (a node: --disk-gb {math.ceil(needed_bytes / 1e9)}), or join a run with a "
                "smaller model"
            )

    async def add(self, manifest: PolicyManifest, sealed: bytes) -> HeldVersion:
        """Count a version as held, and delete what is no longer to be kept.

        Call it when the version's payloads are complete and its weights' hash is checked.

        Raises:
            StoreError: the disk can't be written.
        """
        held = self._held_version(manifest, sealed)
        if held is None:
            raise LocalProtocolError(f"version {manifest.version} is not complete")
        with (
            self.store.pin(manifest.weights.root_sha256),
            self.store.pin(manifest.assets.root_sha256),
        ):
            await self._in_thread(partial(self._write_manifest, held.version, sealed))
            self._held[held.version] = held
            self._added.set()
            self._added = trio.Event()
            await self.prune()
        return held

    async def prune(self, keep: Collection[bytes] = ()) -> None:
        """Delete every version and payload that is not to be kept.

        Args:
            keep: roots of further payloads to spare, as those being downloaded.
        """
        kept = set(self._newest_to_keep()) | {v for v, n in self._pins.items() if n}
        for version in [v for v in self._held if v not in kept]:
            del self._held[version]
            # The manifest goes first: a version without payloads must not seem held.
            await self._in_thread(partial(self._path_of(version).unlink, missing_ok=True))
            _log.info("version.deleted", version=version)
        manifests = [self._held[version].manifest for version in self.versions]
        roots = _roots_to_keep(manifests).union(keep)
        if self.quota_bytes is not None:
            roots = self._within_quota(manifests, roots, keep)
        await self.store.prune(roots)

    def _newest_to_keep(self) -> list[PolicyVersion]:
        if self.newest is None:
            return []
        manifest = self.newest.manifest
        newest = sorted(self._held)[-max(manifest.num_versions_kept, manifest.max_staleness + 1) :]
        if self.quota_bytes is None:
            return newest
        # One more is to fit in while they are here.
        room_bytes = self.quota_bytes - quota_for(manifest)
        num_more = max(0, room_bytes // manifest.weights.size_bytes)
        return newest[-(1 + num_more) :]

    def _within_quota(
        self, manifests: Sequence[PolicyManifest], roots: set[bytes], keep: Collection[bytes]
    ) -> set[bytes]:
        """Return those of ``roots`` to keep: versions first, then what is arriving, as it fits."""
        sizes = {r.root_sha256: r.size_bytes for m in manifests for r in (m.weights, m.assets)}
        held = set(sizes)
        arriving_bytes = max((m.weights.size_bytes for m in manifests), default=0)
        room_bytes = (self.quota_bytes or 0) - arriving_bytes - sum(sizes.values())
        kept = set(held)
        for root in sorted(roots - held, key=lambda root: root not in keep):
            payload = self.store.get(root)
            size_bytes = 0 if payload is None else payload.ref.size_bytes
            is_begun = payload is not None and not payload.is_complete
            if is_begun or size_bytes <= room_bytes:
                room_bytes -= 0 if is_begun else size_bytes
                kept.add(root)
        return kept

    def _held_version(self, manifest: PolicyManifest, sealed: bytes) -> HeldVersion | None:
        weights = self.store.get(manifest.weights.root_sha256)
        assets = self.store.get(manifest.assets.root_sha256)
        if weights is None or assets is None or not (weights.is_complete and assets.is_complete):
            return None
        if (weights.ref, assets.ref) != (manifest.weights, manifest.assets):
            return None
        return HeldVersion(
            manifest=manifest, sealed=sealed, weights=weights.files, assets=assets.files
        )

    def _path_of(self, version: PolicyVersion) -> Path:
        return self._folder / f"{version:08d}{_SUFFIX}"

    def _write_manifest(self, version: PolicyVersion, sealed: bytes) -> None:
        write_atomically(self._path_of(version), sealed, is_durable=False)

    async def _in_thread(self, work: "partial[None]") -> None:
        try:
            await trio.to_thread.run_sync(work)
        except OSError as exc:
            raise layout.disk_error(exc, "cannot change the versions held", self._folder) from exc

    async def _recover(self) -> None:
        await self._in_thread(partial(self._folder.mkdir, exist_ok=True))
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            held = await trio.to_thread.run_sync(self._read, path)
            if held is not None:
                self._held[held.version] = held
            else:
                await self._in_thread(partial(path.unlink, missing_ok=True))
        if self._held:
            _log.info("versions.recovered", versions=list(self.versions))

    def _read(self, path: Path) -> HeldVersion | None:
        try:
            sealed = path.read_bytes()
            manifest = manifest_protocol.verify_manifest(sealed, self.learner_key, run=self.run)
        except (OSError, RemoteProtocolError) as exc:
            _log.warning("version.discarded", file=path.name, error=str(exc))
            return None
        held = self._held_version(manifest, sealed)
        if held is None:
            _log.warning("version.discarded", file=path.name, error="its payloads are not whole")
        return held
