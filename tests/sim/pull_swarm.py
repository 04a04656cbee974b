"""A swarm of chunk cores over the simulated network: one source, peers of many characters."""

import random
from collections.abc import Sequence
from enum import Enum
from functools import partial
from math import inf

from protocols.chunk_pull import (
    AskChunk,
    AskHashes,
    ChunkPull,
    DropHolder,
    Effect,
    Finished,
    PullSettings,
)
from protocols.chunks import bitmap_of
from protocols.ids import PeerId
from protocols.reasons import Reason
from tests.sim.network import SimNetwork

SOURCE = PeerId("source")


class Character(Enum):
    """How a peer serves others."""

    HONEST = "honest"
    GARBAGE = "garbage"
    """Advertises everything, serves wrong bytes."""
    SILENT = "silent"
    """Advertises everything, serves nothing."""
    REFUSING = "refusing"
    """Advertises everything, says it has not got it."""
    TEASING = "teasing"
    """Serves one chunk of what it advertises, then nothing."""


class Peer:
    """One participant: what it holds, and what it still pulls."""

    def __init__(self, name: PeerId, character: Character, pull: ChunkPull | None) -> None:
        self.name = name
        self.character = character
        self.pull = pull
        self.held: set[int] = set()
        self.downloaders: set[PeerId] = set()
        self.finished_at_s = inf
        self.num_sent = 0
        self.num_teased = 0
        self.is_alive = True
        self.timer_s = inf
        self.faults: list[tuple[PeerId, Reason]] = []
        self.outstanding: dict[PeerId, set[int]] = {}


class PullSwarm:
    """Everybody opens everybody; chunks take ``chunk_s`` of an honest uplink."""

    def __init__(
        self,
        network: SimNetwork,
        *,
        num_chunks: int,
        characters: Sequence[Character],
        chunk_s: float = 0.02,
        uplink_factor: Sequence[float] = (),
        settings: PullSettings | None = None,
    ) -> None:
        self.network = network
        self.num_chunks = num_chunks
        self.settings = settings or PullSettings()
        self.source = Peer(SOURCE, Character.HONEST, None)
        self.source.held = set(range(num_chunks))
        self.peers = {SOURCE: self.source}
        for i, character in enumerate(characters):
            pull = None
            name = PeerId(f"peer{i}")
            if character is Character.HONEST:
                pull = ChunkPull(
                    me=name,
                    num_chunks=num_chunks,
                    missing=range(num_chunks),
                    has_hashes=False,
                    source=SOURCE,
                    rng=random.Random(network.rng.random()),
                    settings=self.settings,
                )
            self.peers[name] = Peer(name, character, pull)
        factors = (*uplink_factor, *[1.0] * (len(characters) - len(uplink_factor)))
        self.chunk_s = {SOURCE: chunk_s} | {
            PeerId(f"peer{i}"): chunk_s / factor for i, factor in enumerate(factors)
        }
        self.max_outstanding = 0
        self.num_asked_twice = 0
        for name in self.peers:
            for other in self.peers:
                if name != other and self.peers[name].pull is not None:
                    network.call_at(0.0, partial(self._open, name, other))

    @property
    def honest(self) -> list[Peer]:
        return [p for p in self.peers.values() if p.pull is not None and p.is_alive]

    @property
    def source_copies(self) -> float:
        return self.source.num_sent / self.num_chunks

    def kill(self, name: PeerId) -> None:
        self.peers[name].is_alive = False
        for other in self.peers.values():
            self.network.send(name, other.name, partial(self._lost, other.name, name))

    def _open(self, name: PeerId, other: PeerId) -> None:
        self.network.send(name, other, partial(self._opened, other, name))

    def _opened(self, holder: PeerId, downloader: PeerId) -> None:
        peer = self.peers[holder]
        if not peer.is_alive:
            return
        peer.downloaders.add(downloader)
        is_honest = peer.character is Character.HONEST
        offered = sorted(peer.held) if is_honest else range(self.num_chunks)
        bitmap = bitmap_of(offered, num_chunks=self.num_chunks)
        has_hashes = bool(offered)
        self.network.send(
            holder, downloader, partial(self._holding, downloader, holder, bitmap, has_hashes)
        )

    def _holding(self, name: PeerId, holder: PeerId, bitmap: bytes, has_hashes: bool) -> None:
        peer = self.peers[name]
        if peer.pull is not None and not peer.pull.is_finished and self.peers[holder].is_alive:
            peer.outstanding[holder] = set()
            self._perform(
                peer,
                peer.pull.holder_opened(
                    holder, bitmap, has_hashes=has_hashes, now_s=self.network.now_s
                ),
            )

    def _lost(self, name: PeerId, holder: PeerId) -> None:
        peer = self.peers[name]
        peer.downloaders.discard(holder)
        if peer.pull is not None:
            peer.outstanding.pop(holder, None)
            self._perform(peer, peer.pull.holder_lost(holder, self.network.now_s))

    def _asked(self, holder: PeerId, downloader: PeerId, index: int | None) -> None:
        peer = self.peers[holder]
        if not peer.is_alive or peer.character is Character.SILENT:
            return
        deliver: partial[None]
        if index is None:
            is_good = peer.character is not Character.GARBAGE
            deliver = partial(self._hashes, downloader, holder, is_good)
            self.network.send(holder, downloader, deliver)
            return
        if peer.character is Character.REFUSING:
            deliver = partial(self._refused, downloader, holder, index)
            self.network.send(holder, downloader, deliver)
            return
        if peer.character is Character.TEASING:
            peer.num_teased += 1
            if peer.num_teased > 1:
                return
        assert index in peer.held or peer.character is not Character.HONEST
        peer.num_sent += 1
        deliver = partial(
            self._chunk, downloader, holder, index, peer.character is not Character.GARBAGE
        )
        self.network.send(holder, downloader, deliver, uplink_s=self.chunk_s[holder])

    def _hashes(self, name: PeerId, holder: PeerId, is_good: bool) -> None:
        peer = self.peers[name]
        if peer.pull is not None and peer.is_alive:
            now_s = self.network.now_s
            self._perform(peer, peer.pull.hashes_checked(holder, is_good=is_good, now_s=now_s))

    def _refused(self, name: PeerId, holder: PeerId, index: int) -> None:
        peer = self.peers[name]
        if peer.pull is not None and holder in peer.outstanding:
            peer.outstanding[holder].discard(index)
            reason = Reason.UNKNOWN_CHUNK
            self._perform(peer, peer.pull.refused(holder, index, reason, self.network.now_s))

    def _chunk(self, name: PeerId, holder: PeerId, index: int, is_good: bool) -> None:
        peer = self.peers[name]
        if peer.pull is None or not peer.is_alive or holder not in peer.outstanding:
            return
        if not self.peers[holder].is_alive:
            return
        now_s = self.network.now_s
        is_missing = peer.pull.is_missing(index)
        peer.outstanding[holder].discard(index)
        self._perform(peer, peer.pull.chunk_arrived(holder, index, now_s))
        if not is_missing:
            return
        effects = peer.pull.chunk_checked(holder, index, is_good=is_good, now_s=now_s)
        if is_good and index not in peer.held:
            peer.held.add(index)
            for downloader in sorted(peer.downloaders):
                deliver = partial(self._have, downloader, name, index)
                self.network.send(name, downloader, deliver)
        self._perform(peer, effects)

    def _have(self, name: PeerId, holder: PeerId, index: int) -> None:
        peer = self.peers[name]
        if peer.pull is not None and self.peers[holder].is_alive:
            self._perform(peer, peer.pull.have_received(holder, [index], self.network.now_s))

    def _tick(self, name: PeerId) -> None:
        peer = self.peers[name]
        peer.timer_s = inf
        if peer.pull is not None and peer.is_alive:
            self._perform(peer, peer.pull.deadline_passed(self.network.now_s))

    def _perform(self, peer: Peer, effects: Sequence[Effect]) -> None:
        assert peer.pull is not None
        for effect in effects:
            match effect:
                case AskHashes(holder):
                    ask = partial(self._asked, holder, peer.name, None)
                    self.network.send(peer.name, holder, ask)
                case AskChunk(holder, index):
                    assert index not in peer.held
                    others = [h for h, asked in peer.outstanding.items() if index in asked]
                    assert len(others) <= 1, "asked of three at once"
                    self.num_asked_twice += len(others)
                    peer.outstanding[holder].add(index)
                    self.max_outstanding = max(self.max_outstanding, len(peer.outstanding[holder]))
                    ask = partial(self._asked, holder, peer.name, index)
                    self.network.send(peer.name, holder, ask)
                case DropHolder(holder, _, fault):
                    peer.outstanding.pop(holder, None)
                    self.peers[holder].downloaders.discard(peer.name)
                    if fault is not None:
                        peer.faults.append((holder, fault))
                    elif not peer.pull.is_banned(holder):
                        again_s = self.network.now_s + 5
                        self.network.call_at(again_s, partial(self._open, peer.name, holder))
                case Finished():
                    peer.finished_at_s = self.network.now_s
                    peer.outstanding.clear()
        deadline_s = peer.pull.next_deadline_s()
        if deadline_s < peer.timer_s and not peer.pull.is_finished:
            peer.timer_s = deadline_s
            self.network.call_at(deadline_s, partial(self._tick, peer.name))
