"""By which way a version arrives soonest: whole, or as a delta on what is here.

Pure: the same facts, the same answer; ties go to the first in the order of the types below.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from protocols.manifest import (
    NUM_VERSIONS_WITH_DELTAS,
    Delta,
    PayloadRef,
    PolicyManifest,
    base_of,
)

ASSUMED_BYTES_PER_S: Final = 3e6
"""What a link is taken for before anything has come over it."""
REBUILT_BYTES_PER_S: Final = 250e6
"""A cautious guess at how fast whole weights come out of base and delta."""


@dataclass(frozen=True, slots=True)
class FullUpdate:
    """Fetch the weights as they are."""


@dataclass(frozen=True, slots=True)
class DeltaUpdate:
    """Fetch a delta on weights that are here."""

    delta: Delta


@dataclass(frozen=True, slots=True)
class AnchorUpdate:
    """Fetch the weights of an older version as they are, then a delta on them."""

    delta: Delta


Way = FullUpdate | DeltaUpdate | AnchorUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFacts:
    """What a choice is made of."""

    missing_bytes: Callable[[PayloadRef], int]
    """How much of a payload is not here yet."""
    bytes_per_s: float | None = None
    """At which rate payloads came lately; None before the first."""
    publish_s: float | None = None
    """Seconds from one version to the next; None if that is not known."""
    codecs: Collection[str]
    """Those that can be decoded; none if deltas are not to be used."""


def choose_way(manifest: PolicyManifest, facts: UpdateFacts) -> Way:
    """Return the way by which the version of ``manifest`` arrives soonest.

    A way that is so slow that its first half is of no use any more when it is done
    comes after all that are not.
    """
    return min(_ways(manifest, facts), key=lambda way: _cost(way, manifest, facts))


def first_fetched(manifest: PolicyManifest, way: Way) -> PayloadRef:
    """Return the payload that a way begins with."""
    match way:
        case FullUpdate():
            return manifest.weights
        case DeltaUpdate(delta):
            return delta.payload
        case AnchorUpdate(delta):
            return base_of(manifest, delta)


def is_still_offered(current: PolicyManifest, fetching: PayloadRef, newest: PolicyManifest) -> bool:
    """Return whether holders of ``newest`` still keep what is being fetched for ``current``."""
    if any(fetching == delta.payload for delta in current.deltas):
        return _num_publishes_ago(newest, current.version) < NUM_VERSIONS_WITH_DELTAS
    versions = {delta.base_root_sha256: delta.base_version for delta in current.deltas}
    version = versions.get(fetching.root_sha256, current.version)
    return _is_kept(newest, version, fetching.root_sha256)


def is_worth_finishing(
    current: PolicyManifest, fetching: PayloadRef, newest: PolicyManifest, facts: UpdateFacts
) -> bool | None:
    """Return whether a transfer for ``current`` is to go on although ``newest`` is known.

    It is if the soonest way to the newest version begins with it, or if finishing it and
    then taking the step to the newest is sooner than that. None if the newest has no step
    from the current one, so that there is nothing to compare.
    """
    way = choose_way(newest, facts)
    if first_fetched(newest, way).root_sha256 == fetching.root_sha256:
        return True
    if fetching.root_sha256 not in {r.root_sha256 for r in _last_fetched(current)}:
        return False  # a bridge to nowhere
    steps = [
        delta
        for delta in _known_deltas(newest, facts)
        if delta.base_root_sha256 == current.weights.root_sha256
    ]
    if not steps:
        return None
    after_all_bytes = facts.missing_bytes(fetching) + facts.missing_bytes(steps[0].payload)
    num_patched = 1 if fetching == current.weights else 2
    after_all_s = _seconds(after_all_bytes, facts) + num_patched * _rebuilt_s(newest)
    return after_all_s <= _cost(way, newest, facts)[1]


def _last_fetched(manifest: PolicyManifest) -> list[PayloadRef]:
    """Return the payloads any of which makes the version whole."""
    return [manifest.weights, *(delta.payload for delta in manifest.deltas)]


def _ways(manifest: PolicyManifest, facts: UpdateFacts) -> list[Way]:
    ways: list[Way] = [FullUpdate()]
    deltas = _known_deltas(manifest, facts)
    here = [d for d in deltas if not facts.missing_bytes(base_of(manifest, d))]
    here.sort(key=lambda d: d.base_version, reverse=True)
    # The newest base is what most peers have, and so the delta that they can pass on.
    begun = [d for d in here[1:] if facts.missing_bytes(d.payload) < d.payload.size_bytes]
    ways += [DeltaUpdate(d) for d in here[:1] + begun]
    ways += [
        AnchorUpdate(d)
        for d in deltas
        if facts.missing_bytes(base_of(manifest, d))
        and _is_kept(manifest, d.base_version, d.base_root_sha256)
    ]
    return ways


def _is_kept(newest: PolicyManifest, version: int, root_sha256: bytes) -> bool:
    """Return whether holders of ``newest`` keep the weights of an older version."""
    anchor = _anchor(newest)
    is_anchor = anchor is not None and anchor.base_root_sha256 == root_sha256
    return is_anchor or _num_publishes_ago(newest, version) < newest.num_versions_kept


def _anchor(manifest: PolicyManifest) -> Delta | None:
    return min(manifest.deltas, key=lambda delta: delta.base_version, default=None)


def _num_publishes_ago(manifest: PolicyManifest, version: int) -> float:
    return (manifest.version - version) / manifest.publish_every


def _known_deltas(manifest: PolicyManifest, facts: UpdateFacts) -> list[Delta]:
    return [delta for delta in manifest.deltas if delta.codec in facts.codecs]


def _cost(way: Way, manifest: PolicyManifest, facts: UpdateFacts) -> tuple[bool, float]:
    """Return (whether it comes too late to be of use, seconds)."""
    match way:
        case FullUpdate():
            first_s = _seconds(facts.missing_bytes(manifest.weights), facts)
            return first_s > _useful_s(manifest, manifest.version, facts), first_s
        case DeltaUpdate(delta):
            step_s = _seconds(facts.missing_bytes(delta.payload), facts) + _rebuilt_s(manifest)
            return False, step_s
        case AnchorUpdate(delta):
            first_s = _seconds(facts.missing_bytes(base_of(manifest, delta)), facts)
            step_s = _seconds(facts.missing_bytes(delta.payload), facts) + _rebuilt_s(manifest)
            return first_s > _useful_s(manifest, delta.base_version, facts), first_s + step_s


def _useful_s(manifest: PolicyManifest, version: int, facts: UpdateFacts) -> float:
    """Return for how long a version can be fetched, and is a base of newer ones."""
    if facts.publish_s is None:
        return inf
    anchor = _anchor(manifest)
    if anchor is not None and version == anchor.base_version:
        return inf
    num_publishes = min(manifest.max_staleness + 1, manifest.num_versions_kept)
    return (num_publishes - _num_publishes_ago(manifest, version)) * facts.publish_s


def _seconds(num_bytes: int, facts: UpdateFacts) -> float:
    return num_bytes / (facts.bytes_per_s or ASSUMED_BYTES_PER_S)


def _rebuilt_s(manifest: PolicyManifest) -> float:
    return manifest.weights.size_bytes / REBUILT_BYTES_PER_S
