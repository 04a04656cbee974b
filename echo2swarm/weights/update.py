"""One version, from its manifest to held: by the way on which it arrives soonest."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import structlog
import trio

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.delta.apply import CODECS, rebuild
from echo2swarm.weights.file_names import check_names
from echo2swarm.weights.store.library import VersionLibrary
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.transfer.banned import BanList
from echo2swarm.weights.transfer.fetch import FetchProgress, HoldersSource, fetch_payload
from echo2swarm.weights.transfer.rate_limit import DownloadBudget
from echo2swarm.weights.transfer.stream_pool import StreamPool
from echo2swarm.weights.transfer.traffic import Traffic
from echo2swarm.weights.update_plan import (
    AnchorUpdate,
    DeltaUpdate,
    FullUpdate,
    UpdateFacts,
    Way,
    choose_way,
    is_still_offered,
    is_worth_finishing,
)
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId, PolicyVersion
from protocols.manifest import Delta, PayloadRef, PolicyManifest, base_of
from protocols.reasons import Reason

MIN_RATED_BYTES: Final = 1024 * 1024
"""A rate is taken from transfers of at least this; shorter ones are all round trips."""

_log = structlog.get_logger()


class VersionUpdater:
    """Makes versions held, one at a time.

    Args:
        lines: streams to holders.
        library: where versions go.
        learner: whose uplink is spared.
        holders: the peers that may hold chunks now.
        rng: breaks ties.
        traffic: counts what arrives.
        on_fault: called for each peer that did what no honest one does.
        shunned: who sends wrong bytes is added.
        budget: what may be downloaded; None for all that the line carries.
    """

    def __init__(
        self,
        lines: StreamPool,
        library: VersionLibrary,
        *,
        learner: PeerId,
        holders: HoldersSource,
        rng: random.Random,
        traffic: Traffic,
        on_fault: Callable[[PeerId, Reason], None],
        shunned: BanList | None = None,
        budget: DownloadBudget | None = None,
    ) -> None:
        self._budget = budget
        self._lines = lines
        self._library = library
        self._store = library.store
        self._learner = learner
        self._holders = holders
        self._rng = rng
        self._traffic = traffic
        self._on_fault = on_fault
        self._shunned = shunned
        self._progress: FetchProgress | None = None
        self._fetching: PayloadRef | None = None
        self._bytes_per_s: float | None = None
        self._distrusted: PolicyVersion | None = None
        """The version one of whose deltas was bad; it is fetched whole."""
        self._received_bytes = traffic.received_bytes

    @property
    def progress(self) -> FetchProgress | None:
        """How far what is being fetched is; None if nothing is."""
        return self._progress

    @property
    def fetching(self) -> PayloadRef | None:
        """What is being fetched towards the weights; None if nothing is."""
        return self._fetching

    def is_still_offered(self, current: PolicyManifest, newest: PolicyManifest) -> bool:
        """Return whether holders of ``newest`` keep what is being fetched for ``current``."""
        return self._fetching is None or is_still_offered(current, self._fetching, newest)

    def is_worth_finishing(
        self, current: PolicyManifest, newest: PolicyManifest, *, publish_s: float | None
    ) -> bool | None:
        """Return whether to go on for ``current`` although ``newest`` is known.

        None if the newest version has nothing to do with what is being fetched.
        """
        if self._fetching is None:
            return True  # all is here, or it is the assets, which the newest needs as well
        facts = self._facts(newest, publish_s)
        return is_worth_finishing(current, self._fetching, newest, facts)

    async def obtain(
        self,
        manifest: PolicyManifest,
        sealed: bytes,
        *,
        publish_s: float | None,
    ) -> None:
        """Come to hold a version, or nearer to it: look again what is wanted, and call again.

        Args:
            manifest: the version's.
            sealed: the same as it was signed.
            publish_s: seconds between versions, as far as is known.

        Raises:
            RemoteProtocolError: its weights are not those that were signed, or it brings files
                that no node takes.
            DoesNotFitError: it is larger than the owner's quota.
            StoreError: the disk is full or broken.
        """
        check_names(manifest)
        self._library.check_fits(manifest)
        # What earlier transfers left and nobody will ask for again.
        await self._library.prune(keep=_roots_of(manifest))
        started_s = trio.current_time()
        try:
            way = choose_way(manifest, self._facts(manifest, publish_s))
            with ExitStack() as pins:
                weights = await self._arrive_with_assets(manifest, way, pins)
                if weights is not None:
                    await self._hold(weights, manifest, sealed, started_s, way)
        finally:
            self._progress = self._fetching = None

    async def _arrive_with_assets(
        self, manifest: PolicyManifest, way: Way, pins: ExitStack
    ) -> Payload | None:
        """Go a way, and fetch the assets beside it, where they are not here yet.

        The assets are pinned as long as ``pins`` is open.
        """
        failures: list[StoreError | RemoteProtocolError] = []
        weights: Payload | None = None

        async def fetch_assets() -> None:
            try:
                assets = await self._fetch(manifest.assets)
                pins.enter_context(self._store.pin(assets.root))
            except (StoreError, RemoteProtocolError) as exc:
                failures.append(exc)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch_assets)
            try:
                weights = await self._arrive(manifest, way)
            except (StoreError, RemoteProtocolError) as exc:
                failures.append(exc)
                nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return weights

    async def _arrive(self, manifest: PolicyManifest, way: Way) -> Payload | None:
        """Go a way; return the weights, verified, or None if that was not all of it."""
        match way:
            case FullUpdate():
                return await self._fetched(manifest)
            case DeltaUpdate(delta):
                return await self._rebuilt(manifest, delta)
            case AnchorUpdate(delta):
                _log.info("anchor.fetching", version=delta.base_version)
                await self._fetch_towards(base_of(manifest, delta))
                return None  # by now, another version may be the newest

    async def _hold(
        self,
        weights: Payload,
        manifest: PolicyManifest,
        sealed: bytes,
        started_s: float,
        way: Way,
    ) -> None:
        # From here on there is nothing to abandon.
        with self._store.pin(weights.root), trio.CancelScope(shield=True):
            await self._library.add(manifest, sealed)
        fetched_bytes = self._traffic.received_bytes - self._received_bytes
        self._received_bytes = self._traffic.received_bytes
        _log.info(
            "version.held",
            version=manifest.version,
            how="delta" if isinstance(way, DeltaUpdate) else "full",
            **({"base": way.delta.base_version} if isinstance(way, DeltaUpdate) else {}),
            size_bytes=manifest.weights.size_bytes,
            fetched_bytes=fetched_bytes,
            took_s=round(trio.current_time() - started_s, 3),
        )

    async def _fetched(self, manifest: PolicyManifest) -> Payload:
        weights = await self._fetch_towards(manifest.weights)
        with self._store.pin(weights.root):
            content_sha256 = await self._store.sha256(weights)
        if content_sha256 != manifest.weights_sha256:
            await self._store.delete(weights.root)
            raise RemoteProtocolError(
                "the weights are not those that the manifest was signed for",
                reason=Reason.BAD_CHUNK_HASH,
            )
        return weights

    async def _rebuilt(self, manifest: PolicyManifest, delta: Delta) -> Payload | None:
        """Return the weights made with a delta; None if they are to be fetched whole instead."""
        with self._store.pin(delta.base_root_sha256) as base:
            payload = await self._fetch_towards(delta.payload)
            self._progress = self._fetching = None
            try:
                return await rebuild(self._store, manifest, base=base, delta=payload)
            except RemoteProtocolError as exc:
                _log.error(
                    "delta.refused",
                    version=manifest.version,
                    base=delta.base_version,
                    reason=exc.reason.value,
                    error=str(exc),
                    next="fetching the weights whole",
                )
        self._distrusted = PolicyVersion(manifest.version)
        await self._store.delete(delta.payload.root_sha256)
        return None

    async def _fetch_towards(self, ref: PayloadRef) -> Payload:
        self._fetching = ref
        return await self._fetch(ref, on_progress=self._set_progress)

    async def _fetch(
        self, ref: PayloadRef, *, on_progress: Callable[[FetchProgress], None] = lambda _: None
    ) -> Payload:
        return await fetch_payload(
            self._lines,
            self._store,
            ref,
            holders=self._holders,
            source=self._learner,
            rng=self._rng,
            traffic=self._traffic,
            on_progress=on_progress,
            on_fault=self._on_fault,
            shunned=self._shunned,
            budget=self._budget,
        )

    def _set_progress(self, progress: FetchProgress) -> None:
        self._progress = progress
        if progress.held_bytes >= MIN_RATED_BYTES and progress.bytes_per_s > 0:
            self._bytes_per_s = progress.bytes_per_s

    def _facts(self, manifest: PolicyManifest, publish_s: float | None) -> UpdateFacts:
        return UpdateFacts(
            missing_bytes=self._missing_bytes,
            bytes_per_s=self._bytes_per_s,
            publish_s=publish_s,
            codecs=() if manifest.version == self._distrusted else CODECS,
        )

    def _missing_bytes(self, ref: PayloadRef) -> int:
        payload = self._store.get(ref.root_sha256)
        if payload is None:
            return ref.size_bytes
        if payload.is_complete:
            return 0
        # Never nothing before it is complete: what is nearly here is not here.
        return max(1, ref.size_bytes - payload.held_bytes)


def _roots_of(manifest: PolicyManifest) -> set[bytes]:
    """Return all payloads that may be of use on the way to a version."""
    roots = {manifest.weights.root_sha256, manifest.assets.root_sha256}
    for delta in manifest.deltas:
        roots |= {delta.base_root_sha256, delta.payload.root_sha256}
    return roots
