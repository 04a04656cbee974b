"""What a former process left of a payload, checked again."""

from collections.abc import Collection
from pathlib import Path

from echo2swarm.weights.store import layout
from echo2swarm.weights.store.payload import Payload


def fill(payload: Payload, hashes: bytes, indices: Collection[int] | range) -> None:
    """Note that chunks are here, and the hashes of all."""
    payload.add_hashes(hashes)
    for index in indices:
        payload.add_chunk(index)


def load_payload(folder: Path) -> Payload | None:
    """Return the payload in ``folder`` with those chunks that are verified now."""
    ref = layout.read_ref(folder)
    if ref is None:
        return None
    payload = Payload(ref, folder)
    hashes = layout.read_hashes(folder, ref)
    if folder.name == ref.root_sha256.hex():
        everything = range(ref.num_chunks)
        if hashes is None or len(layout.verified(folder, ref, hashes, everything)) < ref.num_chunks:
            # Never repaired in place: its files may be links to somebody else's.
            return None
        fill(payload, hashes, everything)
        payload.is_complete = True
        return payload
    if folder.name != ref.root_sha256.hex() + layout.PARTIAL_SUFFIX:
        return None
    if hashes is not None:
        claimed = layout.journalled(folder, ref)
        fill(payload, hashes, layout.verified(folder, ref, hashes, claimed))
    return payload
