"""Publishes versions to the swarm: into the learner's own library, and by gossip."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import PolicyRules, publish_version
from echo2swarm.weights.store.library import VersionLibrary
from learner.training.ports import Published
from protocols.ids import PolicyVersion
from protocols.manifest import PolicyManifest


class SwarmPublisher:
    """The publisher that nodes know.

    Args:
        library: where peers fetch from.
        announcer: tells them.
        assets: the model folder, for config and tokenizer.
        rules: what every manifest of the run says.
        key: the learner's.
    """

    def __init__(
        self,
        library: VersionLibrary,
        announcer: ManifestAnnouncer,
        *,
        assets: Path,
        rules: PolicyRules,
        key: Ed25519PrivateKey,
    ) -> None:
        self._library = library
        self._announcer = announcer
        self._assets = assets
        self._rules = rules
        self._key = key

    async def prepare(self, version: PolicyVersion, snapshot: Path) -> Published:
        """Hash and sign the safetensors files in ``snapshot``, which may then be deleted."""
        held = await publish_version(
            self._library,
            version=version,
            snapshot=snapshot,
            assets=self._assets,
            rules=self._rules,
            key=self._key,
        )
        return Published(
            version=version,
            weights_sha256=held.manifest.weights_sha256,
            size_bytes=held.manifest.weights.size_bytes,
            update_bytes=_update_bytes(held.manifest),
        )

    async def announce(self, version: PolicyVersion) -> None:
        """Tell everybody of the version prepared last."""
        held = self._library.get(version)
        if held is None:
            raise StoreError(f"version {version} was deleted before it was announced")
        await self._announcer.announce(held.sealed)


def _update_bytes(manifest: PolicyManifest) -> int:
    """Return what a node fetches that holds the newest version there is a delta from."""
    if not manifest.deltas:
        return manifest.weights.size_bytes
    return max(manifest.deltas, key=lambda delta: delta.base_version).payload.size_bytes
