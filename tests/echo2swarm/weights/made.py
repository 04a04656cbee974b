"""Snapshots, payloads and versions for tests."""

import hashlib
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.weights.publish import PolicyRules
from protocols.ids import RunId
from protocols.manifest import MIN_CHUNK_BYTES, FileRef, PayloadRef, root_of
from protocols.sampling import SamplingParams
from tests.echo2swarm.weights.delta.made import changed, random_bytes

RUN = RunId("demo")
LEARNER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\1")
STRANGER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\2")
RULES = PolicyRules(sampling=SamplingParams(1.0, 16, (0,)), max_staleness=1, publish_every=1)


class Made:
    """A payload in memory: its reference, its chunk hashes, its chunks."""

    def __init__(self, files: dict[str, bytes], *, chunk_bytes: int = MIN_CHUNK_BYTES) -> None:
        self.files = files
        self.data = b"".join(files.values())
        self.chunks = [
            self.data[i : i + chunk_bytes] for i in range(0, len(self.data), chunk_bytes)
        ]
        self.hashes = b"".join(hashlib.sha256(chunk).digest() for chunk in self.chunks)
        refs = tuple(FileRef(name, len(data)) for name, data in files.items())
        self.ref = PayloadRef(root_of(self.hashes), len(self.data), chunk_bytes, refs)


def made(size: int = 5 * MIN_CHUNK_BYTES + 17, *, seed: int = 0) -> Made:
    """A payload of three files whose borders lie inside chunks."""
    data = random_bytes(size, seed=seed)
    first, second = size // 3 + 5, size // 2 + 11
    return Made({"a": data[:first], "b": data[first:second], "empty": b"", "c": data[second:]})


def snapshot(
    folder: Path, *, seed: int, size: int = 3 * MIN_CHUNK_BYTES + 5, data: bytes | None = None
) -> Path:
    """A folder with one weights file."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(data or random_bytes(size, seed=seed))
    return folder


def trained(num_versions: int, *, size: int, share: float = 0.005) -> list[bytes]:
    """The weights of versions in a row, each a little different from the one before."""
    versions = [random_bytes(size, seed=99)]
    for seed in range(1, num_versions):
        versions.append(changed(versions[-1], share=share, seed=seed))
    return versions


def assets(folder: Path) -> Path:
    """A folder with config and tokenizer, and things that must not travel."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder
