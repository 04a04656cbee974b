"""A node's way to the newest version: manifest heard, payloads fetched, version held.

Newest wins: a transfer that a newer manifest overtakes is abandoned unless the
newest is reached soonest by finishing it. Where there are no deltas to compare by,
one that is over half done goes on; and none is abandoned many times in a row, or a
slow link would never hold anything.

A version is held only when everything of it is here, verified, and its weights'
hash is the one the learner signed; until then, and after any failure, what was
held before stays.
"""

import random
from collections import Counter
from contextlib import AbstractContextManager
from typing import Final

import structlog
import trio

from echo2swarm.network.base import Network
from echo2swarm.system.errors import DoesNotFitError, NetworkError, StoreError
from echo2swarm.weights.announce import ask_for_manifest, serve_manifests
from echo2swarm.weights.store.library import HeldVersion, VersionLibrary
from echo2swarm.weights.transfer.banned import BanList
from echo2swarm.weights.transfer.fetch import FetchProgress, HoldersSource
from echo2swarm.weights.transfer.rate_limit import DownloadBudget
from echo2swarm.weights.transfer.stream_pool import StreamPool
from echo2swarm.weights.transfer.traffic import Traffic
from echo2swarm.weights.update import VersionUpdater
from protocols.errors import RemoteProtocolError
from protocols.gossip import ManifestGate, Validation
from protocols.heartbeat import MAX_REPORTS, PeerReport
from protocols.ids import PeerId, PolicyVersion, short
from protocols.manifest import MAX_BYTES, PolicyManifest, topic_of
from protocols.reasons import Reason

FIRST_POLL_S: Final = 2.0
"""So often a manifest is asked for while none is known."""
POLL_S: Final = 30.0
"""So often one is asked for afterwards, should gossip not reach us."""
MIN_POLL_S: Final = 1.0
FIRST_RETRY_S: Final = 2.0
MAX_RETRY_S: Final = 120.0
MAX_ASKED: Final = 3
"""Peers asked for a manifest, beside the learner, each time."""
MAX_ABANDONED_IN_A_ROW: Final = 2
MAX_CULPRITS: Final = 256
PUBLISH_WEIGHT: Final = 0.3
"""Of the newest pause between two versions, in their average."""

_log = structlog.get_logger()


class PolicySync:
    """Keeps a node's library at the newest version.

    Args:
        network: ours.
        library: where versions go; also what a former process left.
        learner: whose uplink is spared, and who is asked first for manifests.
        holders: the peers that may hold chunks now, the learner among them.
        rng: breaks ties.
        traffic: counts what arrives.
        shunned: who sends wrong bytes is added.
        budget: what may be downloaded; None for all that the line carries.
    """

    def __init__(
        self,
        network: Network,
        library: VersionLibrary,
        *,
        learner: PeerId,
        holders: HoldersSource,
        rng: random.Random,
        traffic: Traffic,
        shunned: BanList | None = None,
        budget: DownloadBudget | None = None,
    ) -> None:
        self._is_resting = False
        self._woken = trio.Event()
        self._network = network
        self._library = library
        self._learner = learner
        self._holders = holders
        self._rng = rng
        self._lines = StreamPool(network)
        self._obtainer = VersionUpdater(
            self._lines,
            library,
            learner=learner,
            holders=holders,
            rng=rng,
            traffic=traffic,
            on_fault=self._add_fault,
            shunned=shunned,
            budget=budget,
        )
        self._gate = ManifestGate(library.learner_key, library.run)
        self._news = trio.Event()
        self._hinted = trio.Event()
        self._current: tuple[PolicyManifest, trio.CancelScope] | None = None
        self._trouble = ""
        self._num_abandoned_in_a_row = 0
        self._publish_s: float | None = None
        self._last_heard: tuple[int, float] | None = None
        self._faults: Counter[tuple[PeerId, Reason]] = Counter()
        if library.newest is not None:
            self._gate.judge(library.newest.sealed)
        serve_manifests(network, lambda: self._gate.newest_bytes)

    @property
    def known_version(self) -> PolicyVersion | None:
        """The newest version that the learner is known to have published."""
        return self._gate.newest_version

    @property
    def trouble(self) -> str:
        """Why the newest version could not be fetched when that was last tried; empty if not so."""
        return self._trouble

    @property
    def held(self) -> HeldVersion | None:
        """The newest version that is here, whole and verified."""
        return self._library.newest

    @property
    def versions(self) -> tuple[PolicyVersion, ...]:
        """All versions that are here, whole and verified, oldest first."""
        return self._library.versions

    @property
    def progress(self) -> FetchProgress | None:
        """How far what is being fetched is; None if nothing is."""
        return self._obtainer.progress

    async def next_version(self, after: PolicyVersion | None) -> HeldVersion:
        """Return the newest version held, as soon as it is newer than ``after``.

        Pin it before the next ``await``, and it is certain to be there still.
        """
        return await self._library.next_version(after)

    def pin(self, version: PolicyVersion) -> AbstractContextManager[HeldVersion]:
        """Keep a version's files where they are while the context lasts.

        Raises:
            StoreError: the version is not held (any more).
        """
        return self._library.pin(version)

    def hint(self, newest_version: PolicyVersion) -> None:
        """Note that the learner spoke of a version; its manifest is asked for if it is news."""
        if self.known_version is None or newest_version > self.known_version:
            self._hinted.set()

    def rest(self, *, is_wanted: bool) -> None:
        """Fetch nothing from now on, what is under way included; or go on where that was."""
        self._is_resting = is_wanted
        if is_wanted and self._current is not None:
            self._current[1].cancel()
        self._woken.set()
        self._woken = trio.Event()

    def take_reports(self) -> tuple[PeerReport, ...]:
        """Return what peers had to be refused since the last call, for the next heartbeat."""
        worst = self._faults.most_common(MAX_REPORTS)
        for culprit, _ in worst:
            del self._faults[culprit]
        return tuple(PeerReport(peer, reason, num_times) for (peer, reason), num_times in worst)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch each newest version, until cancelled."""
        async with (
            self._network.subscribe(
                topic_of(self._library.run),
                self._gossiped,
                max_bytes=MAX_BYTES,
                authors=(self._learner,),
            ) as messages,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_drain, messages)
            nursery.start_soon(self._lines.run)
            nursery.start_soon(self._poll)
            task_status.started()
            await self._follow()

    # Manifests.

    def _gossiped(self, author: PeerId, data: bytes) -> Validation:
        """Judge a gossiped manifest, before it is passed on."""
        judgement = self._gate.judge(data)
        if judgement.fate is Validation.REJECT and judgement.reason is not None:
            _log.warning(
                "manifest.rejected",
                peer=short(author),
                reason=judgement.reason.value,
                error=judgement.detail,
            )
            self._add_fault(author, judgement.reason)
        elif judgement.fate is Validation.ACCEPT:
            self._tell_news()
        return judgement.fate

    def _tell_news(self) -> None:
        newest = self._gate.newest
        _log.info("manifest.heard", version=self.known_version)
        self._news.set()
        self._news = trio.Event()
        if newest is not None:
            self._time_publish(newest)
        if newest is not None and self._current is not None:
            manifest, scope = self._current
            if not self._goes_on(manifest, newest):
                scope.cancel()

    def _time_publish(self, newest: PolicyManifest) -> None:
        """Measure how long a version stays the newest."""
        now_s = trio.current_time()
        if self._last_heard is not None:
            version, at_s = self._last_heard
            num_publishes = (newest.version - version) / newest.publish_every
            publish_s = (now_s - at_s) / num_publishes
            last_s = publish_s if self._publish_s is None else self._publish_s
            self._publish_s = last_s + PUBLISH_WEIGHT * (publish_s - last_s)
        self._last_heard = newest.version, now_s

    def _goes_on(self, current: PolicyManifest, newest: PolicyManifest) -> bool:
        """Return whether the transfer for ``current`` goes on although ``newest`` is out."""
        if not self._obtainer.is_still_offered(current, newest):
            return False
        is_worth_it = self._obtainer.is_worth_finishing(current, newest, publish_s=self._publish_s)
        if is_worth_it:
            return True
        if self._num_abandoned_in_a_row >= MAX_ABANDONED_IN_A_ROW:
            return True
        if is_worth_it is None:
            fetching = self._obtainer.fetching
            payload = None if fetching is None else self._library.store.get(fetching.root_sha256)
            return payload is not None and 2 * payload.held_bytes >= payload.ref.size_bytes
        return False

    async def _poll(self) -> None:
        """Ask for the newest manifest when there is a hint, and now and then anyway."""
        while True:
            await self._ask_around()
            await trio.sleep(MIN_POLL_S)  # hints may come thick and fast
            with trio.move_on_after(FIRST_POLL_S if self._gate.newest is None else POLL_S):
                await self._hinted.wait()
            self._hinted = trio.Event()

    async def _ask_around(self) -> None:
        others = sorted(set(self._holders()) - {self._learner, self._network.peer})
        chosen = self._rng.sample(others, min(MAX_ASKED, len(others)))
        for peer in (self._learner, *chosen):
            try:
                sealed = await ask_for_manifest(self._network, peer)
            except (NetworkError, RemoteProtocolError) as exc:
                _log.debug("manifest.not_given", peer=short(peer), error=str(exc))
                continue
            # One who knows of nothing newer does not end the search, unless it is the learner.
            is_news = sealed is not None and self._gossiped(peer, sealed) is Validation.ACCEPT
            if is_news or peer == self._learner:
                return

    # Versions.

    async def _follow(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            manifest, sealed = self._gate.newest, self._gate.newest_bytes
            held = self.held
            if self._is_resting:
                await self._woken.wait()
                continue
            if manifest is None or sealed is None:
                await self._news.wait()
                continue
            if held is not None and held.version >= manifest.version:
                await self._news.wait()
                continue
            try:
                await self._obtain_or_abandon(manifest, sealed)
                retry_s, self._trouble = FIRST_RETRY_S, ""
            except DoesNotFitError:
                raise  # and will not, whatever is tried
            except (StoreError, RemoteProtocolError) as exc:
                reason = exc.reason.value if isinstance(exc, RemoteProtocolError) else "store"
                self._trouble = str(exc)
                _log.error(
                    "version.failed",
                    version=manifest.version,
                    held=None if held is None else held.version,
                    reason=reason,
                    error=str(exc),
                    retry_s=retry_s,
                )
                with trio.move_on_after(retry_s):
                    await self._news.wait()
                retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _obtain_or_abandon(self, manifest: PolicyManifest, sealed: bytes) -> None:
        scope = trio.CancelScope()
        self._current = manifest, scope
        try:
            with scope:
                await self._obtainer.obtain(
                    manifest,
                    sealed,
                    publish_s=self._publish_s,
                )
                self._num_abandoned_in_a_row = 0
            if scope.cancelled_caught and not self._is_resting:
                self._num_abandoned_in_a_row += 1
                _log.info("version.abandoned", version=manifest.version, newer=self.known_version)
        finally:
            self._current = None

    def _add_fault(self, peer: PeerId, reason: Reason) -> None:
        if (peer, reason) in self._faults or len(self._faults) < MAX_CULPRITS:
            self._faults[peer, reason] += 1


async def _drain(messages: "trio.MemoryReceiveChannel[tuple[PeerId, bytes]]") -> None:
    # The validator has taken in all there is to know; the queue must not fill up.
    async for _ in messages:
        pass
