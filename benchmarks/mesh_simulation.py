"""A broadcast on virtual time: the real cores, links that are queues, seeded.

Peers pull with :class:`~protocols.chunk_download.ChunkDownload`, the source deals with
:class:`~echo2swarm.weights.transfer.seeder.Seeder`. An uplink and a downlink pass one chunk after
the other (store and forward); control messages take the latency and no bandwidth.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from math import inf
from typing import Final

from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s
from echo2swarm.weights.transfer.have_interval import news_s
from echo2swarm.weights.transfer.seeder import ChunkOffer, Seeder, SeederSettings
from protocols.chunk_download import ChunkDownload
from protocols.chunk_effects import AskChunk, AskHashes, DropPeer, Effect, Finished
from protocols.chunk_source import DownloadSettings
from protocols.chunks import bitmap_of
from protocols.ids import PeerId
from protocols.reasons import Reason

SOURCE: Final = PeerId("source")
LOOK_S: Final = 0.25
"""So often a peer looks for passed deadlines."""
RETRY_S: Final = 5.0
"""A holder that was dropped and not banned is opened again after this."""
MIN_REPORTERS: Final = 3
"""Who is reported for wrong bytes by so many is out."""
REFILL_S: Final = 5.0
"""So long it takes until the tracker has noticed a death and named somebody else."""


class Character(StrEnum):
    """How a peer serves others."""

    HONEST = "honest"
    GARBAGE = "garbage"
    """Takes part, and serves wrong bytes."""
    HOARDER = "hoarder"
    """Takes part, is thought a great uploader, and tells nobody what it has."""
    SILENT = "silent"
    """Advertises everything, serves nothing."""
    REFUSING = "refusing"
    """Advertises everything, says it has not got it."""
    TEASING = "teasing"
    """Serves one chunk of what it advertises, then nothing."""


_CLAIM_ALL: Final = {Character.SILENT, Character.REFUSING, Character.TEASING}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpec:
    """One peer of a scenario."""

    up_bytes_per_s: float
    down_bytes_per_s: float
    character: Character = Character.HONEST
    dies_at_s: float = inf
    joins_at_s: float = 0.0
    can_be_dialled: bool = True
    thought_up_bytes_per_s: float | None = None
    """What the source believes; None for the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One broadcast."""

    payload_bytes: int
    chunk_bytes: int
    source_bytes_per_s: float
    peers: Sequence[PeerSpec]
    num_neighbours: int = 12
    max_source_streams: int = 256
    latency_s: tuple[float, float] = (0.01, 0.05)
    """One way, uniform, new for each message."""
    source_away_s: tuple[float, float] = (inf, inf)
    """The learner's process is gone from and until."""
    pull: DownloadSettings = field(default_factory=DownloadSettings)
    deal: SeederSettings = field(default_factory=SeederSettings)
    seed: int = 0
    until_s: float = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of it."""

    finished_at_s: tuple[float, ...]
    """When each honest peer that lived held everything, since it joined; ``inf`` for never."""
    bound_s: float
    """The least time possible for those peers, :func:`broadcast_bound_s`."""
    source_copies: float
    """What the source sent, in payloads."""
    copies: float
    """What all sent, in payloads, for each peer that finished."""
    bans: tuple[tuple[PeerId, PeerId, Reason], ...]
    """(who, whom, why)."""
    num_asked_twice: int
    max_outstanding: int

    def share_s(self, share: float) -> float:
        """Return when this share of the peers had finished."""
        times = sorted(self.finished_at_s)
        return times[min(len(times) - 1, int(share * len(times)))]


def simulate(scenario: Scenario) -> Result:
    """Return how a broadcast goes; the same scenario gives the same result."""
    return _Simulation(scenario).run()


class _Peer:
    def __init__(self, name: PeerId, spec: PeerSpec, pull: ChunkDownload | None) -> None:
        self.name = name
        self.spec = spec
        self.pull = pull
        self.held: set[int] = set()
        self.neighbours: set[PeerId] = set()
        self.downloaders: set[PeerId] = set()
        """Who has a stream open to us."""
        self.outstanding: dict[PeerId, set[int]] = {}
        """Whom we have a stream open to, and what we asked there."""
        self.news: list[int] = []
        self.reporters: set[PeerId] = set()
        self.shunned: set[PeerId] = set()
        """Who sent us wrong bytes, and gets none."""
        self.up_free_s = 0.0
        self.down_free_s = 0.0
        self.num_sent = 0
        self.timer_s = inf
        self.finished_at_s = inf
        self.is_alive = True


class _Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._rng = random.Random(scenario.seed)
        self._now_s = 0.0
        self._order = count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._num_chunks = -(-scenario.payload_bytes // scenario.chunk_bytes)
        self._link_free_s: dict[tuple[PeerId, PeerId], float] = {}
        self._bans: list[tuple[PeerId, PeerId, Reason]] = []
        self._num_asked_twice = 0
        self._max_outstanding = 0
        self._num_alive_unfinished = 0
        source = PeerSpec(
            up_bytes_per_s=scenario.source_bytes_per_s, down_bytes_per_s=scenario.source_bytes_per_s
        )
        self._source = _Peer(SOURCE, source, None)
        self._source.held = set(range(self._num_chunks))
        self._dealer = self._new_dealer()
        self._peers = {SOURCE: self._source}
        for i, spec in enumerate(scenario.peers):
            name = PeerId(f"peer{i}")
            self._peers[name] = _Peer(name, spec, self._pull_of(spec))

    def run(self) -> Result:
        scenario = self._scenario
        self._link_up()
        for peer in self._others():
            self._call_at(peer.spec.joins_at_s, partial(self._join, peer))
            if peer.spec.dies_at_s < inf:
                self._call_at(peer.spec.dies_at_s, partial(self._die, peer))
        gone_s, back_s = scenario.source_away_s
        if gone_s < inf:
            self._call_at(gone_s, partial(self._die, self._source))
            self._call_at(back_s, self._source_returns)
        survivors = [
            p for p in self._others() if p.pull is not None and p.spec.dies_at_s == inf
            and p.spec.character is Character.HONEST
        ]  # fmt: skip
        self._num_alive_unfinished = len(survivors)
        while self._queue and self._num_alive_unfinished and self._now_s <= scenario.until_s:
            self._now_s, _, callback = heapq.heappop(self._queue)
            callback()
        num_sent = sum(peer.num_sent for peer in self._peers.values())
        return Result(
            finished_at_s=tuple(p.finished_at_s - p.spec.joins_at_s for p in survivors),
            bound_s=broadcast_bound_s(
                scenario.payload_bytes,
                source_bytes_per_s=scenario.source_bytes_per_s,
                up_bytes_per_s=[p.spec.up_bytes_per_s for p in survivors],
                down_bytes_per_s=[p.spec.down_bytes_per_s for p in survivors],
            ),
            source_copies=self._source.num_sent / self._num_chunks,
            copies=num_sent / self._num_chunks / max(1, len(survivors)),
            bans=tuple(self._bans),
            num_asked_twice=self._num_asked_twice,
            max_outstanding=self._max_outstanding,
        )

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.random())

    # Who knows whom.

    def _others(self) -> list[_Peer]:
        return [peer for peer in self._peers.values() if peer is not self._source]

    def _pull_of(self, spec: PeerSpec) -> ChunkDownload | None:
        if spec.character in _CLAIM_ALL:
            return None
        return ChunkDownload(
            num_chunks=self._num_chunks,
            missing=range(self._num_chunks),
            has_hashes=False,
            source=SOURCE,
            rng=self._new_rng(),
            settings=self._scenario.pull,
        )

    def _new_dealer(self) -> Seeder:
        return Seeder(
            num_chunks=self._num_chunks,
            rng=self._new_rng(),
            settings=self._scenario.deal,
        )

    def _link_up(self) -> None:
        """Give everybody neighbours at random, the source to all it has streams for."""
        others = self._others()
        for peer in self._rng.sample(others, min(len(others), self._scenario.max_source_streams)):
            peer.neighbours.add(SOURCE)
        for peer in others:
            self._refill(peer)

    def _refill(self, peer: _Peer) -> None:
        wanted = min(self._scenario.num_neighbours, len(self._peers) - 2)
        candidates = self._others()
        for _ in range(8 * wanted):
            living = [n for n in peer.neighbours if n != SOURCE and self._peers[n].is_alive]
            if len(living) >= wanted:
                return
            other = self._rng.choice(candidates)
            may_meet = peer.spec.can_be_dialled or other.spec.can_be_dialled
            is_full = len(other.neighbours) > 1.5 * wanted
            if other is peer or not other.is_alive or not may_meet or is_full:
                continue
            peer.neighbours.add(other.name)
            other.neighbours.add(peer.name)

    def _join(self, peer: _Peer) -> None:
        if not peer.is_alive:
            return
        self._look(peer)
        for name in sorted(peer.neighbours):
            other = self._peers[name]
            if other.spec.joins_at_s <= self._now_s:
                self._connect(peer, other)

    def _connect(self, peer: _Peer, other: _Peer) -> None:
        for one, two in ((peer, other), (other, peer)):
            if one.pull is not None and not one.pull.is_finished:
                self._send(one.name, two.name, partial(self._opened, two, one))

    def _die(self, peer: _Peer) -> None:
        peer.is_alive = False
        if peer is self._source:
            self._dealer = self._new_dealer()
        for other in self._peers.values():
            if other.name in peer.neighbours or other.name in peer.downloaders:
                self._send(peer.name, other.name, partial(self._lost, other, peer))
                if peer is not self._source and other is not self._source:
                    self._call_at(self._now_s + REFILL_S, partial(self._replace, other))
        peer.downloaders.clear()
        peer.outstanding.clear()

    def _replace(self, peer: _Peer) -> None:
        if peer.is_alive and peer.spec.joins_at_s <= self._now_s:
            before = set(peer.neighbours)
            self._refill(peer)
            for name in sorted(peer.neighbours - before):
                self._connect(peer, self._peers[name])

    def _source_returns(self) -> None:
        self._source.is_alive = True
        self._source.up_free_s = self._now_s
        for peer in self._others():
            if SOURCE in peer.neighbours and peer.is_alive:
                wait_s = self._rng.uniform(0, RETRY_S)
                self._call_at(self._now_s + wait_s, partial(self._connect, peer, self._source))

    # Streams.

    def _opened(self, holder: _Peer, downloader: _Peer) -> None:
        if not (holder.is_alive and downloader.is_alive) or downloader.pull is None:
            return
        if downloader.name in holder.downloaders | holder.shunned:
            return
        holder.downloaders.add(downloader.name)
        offered: Sequence[int] = sorted(holder.held)
        offers: list[ChunkOffer] = []
        if holder is self._source:
            thought = downloader.spec.thought_up_bytes_per_s
            offers = self._dealer.joined(
                downloader.name,
                sorted(downloader.held),
                weight=downloader.spec.up_bytes_per_s if thought is None else thought,
                now_s=self._now_s,
            )
            offered = ()
        elif holder.spec.character in _CLAIM_ALL:
            offered = range(self._num_chunks)
        elif holder.spec.character is Character.HOARDER:
            offered = ()
        bitmap = bitmap_of(offered, num_chunks=self._num_chunks)
        has_hashes = holder is self._source or bool(offered)
        deliver = partial(self._holding, downloader, holder, bitmap, has_hashes)
        self._send(holder.name, downloader.name, deliver)
        self._tell(offers)

    def _holding(self, peer: _Peer, holder: _Peer, bitmap: bytes, has_hashes: bool) -> None:
        pull = peer.pull
        if pull is None or pull.is_finished or not (holder.is_alive and peer.is_alive):
            return
        if holder.name in peer.outstanding:
            return
        peer.outstanding[holder.name] = set()
        effects = pull.holder_opened(holder.name, bitmap, has_hashes=has_hashes, now_s=self._now_s)
        self._perform(peer, effects)

    def _lost(self, peer: _Peer, holder: _Peer) -> None:
        peer.downloaders.discard(holder.name)
        if peer is self._source:
            self._tell(self._dealer.left(holder.name, self._now_s))
        if holder is not self._source:
            peer.neighbours.discard(holder.name)
        if peer.pull is not None and peer.is_alive:
            peer.outstanding.pop(holder.name, None)
            self._perform(peer, peer.pull.holder_lost(holder.name, self._now_s))

    # What holders do.

    def _asked(self, holder: _Peer, downloader: _Peer, index: int | None) -> None:
        character = holder.spec.character
        if not holder.is_alive or character is Character.SILENT:
            return
        if downloader.name not in holder.downloaders:
            return
        if index is None:
            is_good = character is not Character.GARBAGE
            deliver = partial(self._hashes, downloader, holder, is_good)
            self._send(holder.name, downloader.name, deliver)
            return
        if character is Character.REFUSING:
            deliver = partial(self._refused, downloader, holder, index)
            self._send(holder.name, downloader.name, deliver)
            return
        if character is Character.TEASING and holder.num_sent:
            return
        if holder is self._source:
            if not self._dealer.is_offered(downloader.name, index):
                raise AssertionError(f"{downloader.name} asks for {index}, not offered")
            self._tell(self._dealer.asked(downloader.name, index, self._now_s))
        self._upload(holder, downloader, index)

    def _upload(self, holder: _Peer, downloader: _Peer, index: int) -> None:
        """One chunk through the uplink, the world, and the downlink, each in its turn."""
        size_bytes = self._scenario.chunk_bytes
        holder.num_sent += 1
        sent_s = max(self._now_s, holder.up_free_s) + size_bytes / holder.spec.up_bytes_per_s
        holder.up_free_s = sent_s
        self._call_at(
            sent_s + self._latency_s(), partial(self._at_downlink, holder, downloader, index)
        )

    def _at_downlink(self, holder: _Peer, downloader: _Peer, index: int) -> None:
        if holder is self._source and holder.is_alive:
            self._tell(self._dealer.sent(downloader.name, index, self._now_s))
        took_s = self._scenario.chunk_bytes / downloader.spec.down_bytes_per_s
        # It came in while it was being sent, unless others' chunks were in the way.
        here_s = max(self._now_s, downloader.down_free_s + took_s)
        downloader.down_free_s = here_s
        self._call_at(here_s, partial(self._chunk, downloader, holder, index))

    def _tell(self, offers: Sequence[ChunkOffer]) -> None:
        for offer in offers:
            peer = self._peers[offer.peer]
            deliver = partial(self._have, peer, self._source, list(offer.indices))
            self._send(SOURCE, peer.name, deliver)
        if self._source.timer_s == inf:
            deadline_s = self._dealer.next_deadline_s(self._now_s)
            if deadline_s < inf:
                self._source.timer_s = deadline_s
                self._call_at(deadline_s, self._deal_tick)

    def _deal_tick(self) -> None:
        self._source.timer_s = inf
        if self._source.is_alive:
            self._tell(self._dealer.deadline_passed(self._now_s))

    # What downloaders do.

    def _hashes(self, peer: _Peer, holder: _Peer, is_good: bool) -> None:
        if peer.pull is not None and peer.is_alive and holder.name in peer.outstanding:
            effects = peer.pull.hashes_checked(holder.name, is_good=is_good, now_s=self._now_s)
            self._perform(peer, effects)

    def _refused(self, peer: _Peer, holder: _Peer, index: int) -> None:
        if peer.pull is not None and holder.name in peer.outstanding:
            peer.outstanding[holder.name].discard(index)
            reason = Reason.UNKNOWN_CHUNK
            self._perform(peer, peer.pull.refused(holder.name, index, reason, self._now_s))

    def _chunk(self, peer: _Peer, holder: _Peer, index: int) -> None:
        if peer.pull is None or not (peer.is_alive and holder.is_alive):
            return
        if holder.name not in peer.outstanding:
            return
        is_missing = peer.pull.is_missing(index)
        is_good = holder.spec.character is not Character.GARBAGE
        peer.outstanding[holder.name].discard(index)
        self._perform(peer, peer.pull.chunk_arrived(holder.name, index, self._now_s))
        if not is_missing:
            return
        effects = peer.pull.chunk_checked(holder.name, index, is_good=is_good, now_s=self._now_s)
        if is_good and index not in peer.held:
            peer.held.add(index)
            if not peer.news:
                wait_s = news_s(self._now_s - peer.spec.joins_at_s)
                self._call_at(self._now_s + wait_s, partial(self._tell_news, peer))
            peer.news.append(index)
        self._perform(peer, effects)

    def _tell_news(self, peer: _Peer) -> None:
        news, peer.news = peer.news, []
        if not peer.is_alive:
            return
        if SOURCE in peer.outstanding and self._source.is_alive:
            deliver = partial(self._held, peer, news)
            self._send(peer.name, SOURCE, deliver)
        if peer.spec.character is not Character.HOARDER:
            for name in sorted(peer.downloaders):
                deliver = partial(self._have, self._peers[name], peer, news)
                self._send(peer.name, name, deliver)

    def _held(self, peer: _Peer, indices: Sequence[int]) -> None:
        if self._source.is_alive:
            self._tell(self._dealer.held(peer.name, indices, self._now_s))

    def _have(self, peer: _Peer, holder: _Peer, indices: Sequence[int]) -> None:
        if peer.pull is not None and holder.is_alive and holder.name in peer.outstanding:
            self._perform(peer, peer.pull.have_received(holder.name, indices, self._now_s))

    def _look(self, peer: _Peer) -> None:
        """Look for passed deadlines now and then, until it is done."""
        if peer.pull is None or peer.pull.is_finished or not peer.is_alive:
            return
        if peer.pull.next_deadline_s() <= self._now_s:
            self._perform(peer, peer.pull.deadline_passed(self._now_s))
        self._call_at(self._now_s + LOOK_S, partial(self._look, peer))

    def _perform(self, peer: _Peer, effects: Sequence[Effect]) -> None:
        pull = peer.pull
        if pull is None:
            raise AssertionError("who pulls nothing has no effects")
        for effect in effects:
            match effect:
                case AskHashes(holder):
                    self._ask(peer, holder, None)
                case AskChunk(holder, index):
                    self._ask(peer, holder, index)
                case DropPeer(holder, _, fault):
                    self._drop(peer, self._peers[holder], fault)
                case Finished():
                    self._finished(peer)

    def _ask(self, peer: _Peer, holder: PeerId, index: int | None) -> None:
        if index is not None:
            others = sum(index in asked for asked in peer.outstanding.values())
            if others > 1 or index in peer.held:
                raise AssertionError(f"{peer.name} asks too often for {index}")
            self._num_asked_twice += others
            peer.outstanding[holder].add(index)
            self._max_outstanding = max(self._max_outstanding, len(peer.outstanding[holder]))
        self._send(peer.name, holder, partial(self._asked, self._peers[holder], peer, index))

    def _drop(self, peer: _Peer, holder: _Peer, fault: Reason | None) -> None:
        peer.outstanding.pop(holder.name, None)
        holder.downloaders.discard(peer.name)
        if holder is self._source:
            self._tell(self._dealer.left(peer.name, self._now_s))
        if fault is not None:
            self._bans.append((peer.name, holder.name, fault))
            self._call_at(self._now_s + REFILL_S, partial(self._replace, peer))
            if fault is Reason.BAD_CHUNK_HASH:
                peer.shunned.add(holder.name)
                peer.downloaders.discard(holder.name)
                self._send(peer.name, holder.name, partial(self._lost, holder, peer))
                self._send(peer.name, SOURCE, partial(self._reported, peer.name, holder))
        elif peer.pull is not None and not peer.pull.is_banned(holder.name):
            again = partial(self._opened, holder, peer)
            self._call_at(self._now_s + RETRY_S, again)

    def _reported(self, reporter: PeerId, culprit: _Peer) -> None:
        culprit.reporters.add(reporter)
        if len(culprit.reporters) == MIN_REPORTERS and self._source.is_alive:
            self._tell(self._dealer.left(culprit.name, self._now_s))
            self._source.downloaders.discard(culprit.name)
            self._send(SOURCE, culprit.name, partial(self._lost, culprit, self._source))

    def _finished(self, peer: _Peer) -> None:
        peer.finished_at_s = self._now_s
        peer.outstanding = {name: set() for name in peer.outstanding if name == SOURCE}
        if peer.spec.dies_at_s == inf and peer.spec.character is Character.HONEST:
            self._num_alive_unfinished -= 1

    # Time.

    def _latency_s(self) -> float:
        low_s, high_s = self._scenario.latency_s
        return low_s + (high_s - low_s) * self._rng.random()

    def _send(self, src: PeerId, dst: PeerId, deliver: Callable[[], None]) -> None:
        """Deliver a control message; those of one pair arrive in order, as on a stream."""
        arrival_s = max(self._now_s + self._latency_s(), self._link_free_s.get((src, dst), 0.0))
        self._link_free_s[src, dst] = arrival_s
        self._call_at(arrival_s, deliver)

    def _call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when_s, self._now_s), next(self._order), callback))
