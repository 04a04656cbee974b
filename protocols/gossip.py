"""Which gossiped manifests to believe and pass on; specification: ``docs/specs/manifest.md``.

A core without I/O: the network adapter asks it about every message before the
message is delivered or forwarded, so what it rejects travels no further.
"""

from dataclasses import dataclass
from enum import Enum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from protocols import manifest as manifest_protocol
from protocols.errors import RemoteProtocolError
from protocols.ids import PolicyVersion, RunId
from protocols.manifest import PolicyManifest
from protocols.reasons import Reason


class Validation(Enum):
    """What becomes of a gossip message."""

    ACCEPT = "accept"
    """New and genuine: deliver it and pass it on."""
    IGNORE = "ignore"
    """Genuine but not news; no fault of the sender's."""
    REJECT = "reject"
    """Forged or broken: drop it, and hold it against the sender."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The fate of one message, and why."""

    fate: Validation
    reason: Reason | None = None
    detail: str = ""
    manifest: PolicyManifest | None = None


class ManifestGate:
    """Accepts each newer genuine manifest once, in any order of arrival of older ones."""

    def __init__(self, learner_key: Ed25519PublicKey, run: RunId) -> None:
        self._learner_key = learner_key
        self._run = run
        self._newest: PolicyManifest | None = None
        self._newest_bytes: bytes | None = None

    @property
    def newest(self) -> PolicyManifest | None:
        """The newest manifest accepted so far."""
        return self._newest

    @property
    def newest_bytes(self) -> bytes | None:
        """The newest manifest as it was signed, for handing on."""
        return self._newest_bytes

    @property
    def newest_version(self) -> PolicyVersion | None:
        """The newest version accepted so far."""
        return None if self._newest is None else PolicyVersion(self._newest.version)

    def judge(self, data: bytes) -> Judgement:
        """Judge one message; what is accepted becomes the newest known."""
        if data == self._newest_bytes:
            return Judgement(Validation.IGNORE, Reason.DUPLICATE, "already known")
        try:
            manifest = manifest_protocol.verify_manifest(data, self._learner_key, run=self._run)
        except RemoteProtocolError as exc:
            return Judgement(Validation.REJECT, exc.reason, str(exc))
        if self._newest is not None and manifest.version <= self._newest.version:
            return Judgement(
                Validation.IGNORE,
                Reason.OLD_VERSION,
                f"version {manifest.version}, already at {self._newest.version}",
            )
        self._newest, self._newest_bytes = manifest, data
        return Judgement(Validation.ACCEPT, manifest=manifest)
