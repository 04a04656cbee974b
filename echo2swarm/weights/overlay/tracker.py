"""Who exchanges chunks with whom: the learner's hand-out of neighbours, without I/O.

The rules:

- *symmetric*: if A is given B, then B is given A, so that whichever can dial does;
- *about a dozen each*: everybody in a small swarm; more for those who upload fast;
- *random-regular*: a newcomer takes free places, and where there are too few it steps in
  between two that are paired. Such an overlay is well connected; if it ever falls apart
  among those that can be dialled, it is joined again;
- *stable*: pairs stay until one of the two leaves, is shut out or proves unreachable, or
  somebody who has too few steps in between;
- *reachable*: who can't be dialled gets peers that can be (no two unreachable ones are
  paired, unless hole punching is known to work; then at most half are), as many as all
  others have places for, shared out evenly;
- *shut out*: three members that report wrong bytes from the same peer take it out of all
  hands for an hour; one or two of them are only not given it again.

Who can be dialled is :mod:`echo2swarm.weights.overlay.reachability`'s to find out.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import median
from typing import Final

from echo2swarm.weights.overlay.bans import BanBook
from echo2swarm.weights.overlay.overlay import OverlayMember, island_of, pair, unpair
from protocols.heartbeat import MAX_NEIGHBOURS
from protocols.ids import PeerId

_FAST_SHARE: Final = 4 / 3
"""The fastest uploaders get this many times the usual number."""
_NEWS_SHARE: Final = 0.25
"""A rate that changed by less than this is no news."""
_MUCH_LESS: Final = 2
"""Who is fast and has so many fewer than it should is given more; less is not worth it."""
_TRIES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySettings:
    """How many neighbours."""

    usual: int = 12
    """What everybody gets if there are enough."""
    least: int = 8
    """With fewer than this, others' pairs are broken up."""
    most: int = MAX_NEIGHBOURS
    can_punch: bool = False
    """Whether two unreachable peers can be brought together."""


class OverlayTracker:
    """The overlay of one run.

    Args:
        rng: decides who is paired; the same seed and events give the same overlay.
        settings: see :class:`OverlaySettings`.
    """

    def __init__(self, rng: random.Random, settings: OverlaySettings | None = None) -> None:
        self.bans = BanBook()
        self._rng = rng
        self._settings = settings or OverlaySettings()
        self._members: dict[PeerId, OverlayMember] = {}
        self._typical_upload = 0.0

    # What is asked.

    def neighbours_of(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Return whom ``peer`` is given; nobody to one who is no member, or shut out."""
        member = self._members.get(peer)
        return () if member is None else tuple(member.near)

    @property
    def members(self) -> tuple[PeerId, ...]:
        """Return all members, in the order of their coming."""
        return tuple(self._members)

    # What happens.

    def joined(self, peer: PeerId, *, is_reachable: bool = True) -> None:
        """Take in a member, unless it is here already or shut out."""
        if peer not in self._members and not self.bans.is_banned(peer):
            self._members[peer] = OverlayMember(peer, is_reachable)
            self._mend([peer])

    def left(self, peer: PeerId) -> None:
        """Let a member go."""
        if (member := self._members.get(peer)) is not None:
            near = tuple(member.near)
            for other in near:
                unpair(member, self._members[other])
            del self._members[peer]
            self._mend(near)

    def reach_changed(self, peer: PeerId, *, is_reachable: bool) -> None:
        """Note whether others can dial a member."""
        member = self._members.get(peer)
        if member is None or member.is_reachable is is_reachable:
            return
        member.is_reachable = is_reachable
        for other in member.near:
            self._members[other].num_reachable += 1 if is_reachable else -1
        # The others are looked at, too: places of one kind have become places of the other.
        self._mend([peer, *member.near])

    def rated(self, peer: PeerId, upload_bytes_per_s: float) -> None:
        """Note a member's measured upload; who turns out to be fast is given more neighbours."""
        member = self._members.get(peer)
        if member is None:
            return
        change = abs(upload_bytes_per_s - member.upload_bytes_per_s)
        if change > _NEWS_SHARE * member.upload_bytes_per_s:
            member.upload_bytes_per_s = upload_bytes_per_s
            self._typical_upload = self._median_upload()
        if member.is_reachable and self._target(member) >= member.num_reachable + _MUCH_LESS:
            others = sum(m.is_reachable for m in self._members.values()) - 1
            if others >= member.num_reachable + _MUCH_LESS:
                self._mend([peer])

    def reported(self, reporter: PeerId, culprit: PeerId, now_s: float) -> bool:
        """Note that ``reporter`` got wrong bytes; returns whether that shuts the culprit out.

        Only members' reports count, and only those about members.
        """
        if reporter == culprit or not {reporter, culprit} <= self._members.keys():
            return False
        if self.bans.reported(reporter, culprit, now_s):
            self.left(culprit)
            return True
        if culprit in self._members[reporter].near:
            unpair(self._members[reporter], self._members[culprit])
            self._mend([reporter, culprit])
        return False

    # The overlay.

    def _mend(self, peers: Iterable[PeerId]) -> None:
        """Give ``peers`` what they lack; then see that all hangs together."""
        self._typical_upload = self._median_upload()
        touched = [self._members[peer] for peer in peers]
        for member in touched:
            self._drop_unreachable(member)
        for member in touched:
            if member.is_reachable:
                self._fill(member)
        for member in touched:
            if member.is_reachable:
                self._serve_the_poorest(member)
            else:
                self._fill_unreachable(member)
        self._join_islands()

    def _fill(self, member: OverlayMember) -> None:
        """Pair one that can be dialled with others that can be."""
        target = self._target(member)
        lacking = [
            other
            for other in self._members.values()
            if other.is_reachable
            and other.num_reachable < self._target(other)
            and self._may_pair(member, other)
        ]
        self._rng.shuffle(lacking)
        for other in lacking:
            if member.num_reachable >= target:
                return
            if self._can_make_room(member) and self._can_make_room(other):
                self._pair_with_room(member, other)
        is_fast = target > self._settings.usual
        wanted = target if is_fast else min(target, self._settings.least)
        while member.num_reachable + 1 < wanted and self._step_between(member):
            pass
        if member.num_reachable < min(wanted, 2):
            self._take_any(member)

    def _step_between(self, member: OverlayMember) -> bool:
        """Break up a random pair, and pair both with ``member``; returns whether that worked."""
        if len(member.near) + 2 > self._settings.most:
            return False
        reachable = [m for m in self._members.values() if m.is_reachable]
        for _ in range(_TRIES):
            one = self._rng.choice(reachable)
            partners = [p for p in one.near if self._members[p].is_reachable]
            if not partners or not self._may_pair(member, one):
                continue
            other = self._members[self._rng.choice(partners)]
            if self._may_pair(member, other):
                unpair(one, other)
                pair(member, one)
                pair(member, other)
                return True
        return False

    def _take_any(self, member: OverlayMember) -> None:
        """Pair ``member`` with somebody who has enough already, rather than leave it alone."""
        others = [
            other
            for other in self._members.values()
            if other.is_reachable and self._may_pair(member, other) and self._can_make_room(other)
        ]
        if others and self._can_make_room(member):
            self._pair_with_room(member, min(others, key=lambda other: other.num_reachable))

    def _fill_unreachable(self, member: OverlayMember) -> None:
        """Pair one that can't be dialled: with those first that serve fewest of its kind."""
        wanted = self._wanted_by_unreachable()
        servers = [
            other
            for other in self._members.values()
            if other.is_reachable and self._num_places(other) > 0 and self._may_pair(member, other)
        ]
        self._rng.shuffle(servers)
        servers.sort(key=lambda other: other.num_unreachable)
        for other in servers[: max(0, wanted - member.num_reachable)]:
            pair(member, other)
        while member.num_reachable + 1 < wanted and self._take_from_richest(member):
            pass
        if self._settings.can_punch:
            self._punch(member)

    def _take_from_richest(self, member: OverlayMember) -> bool:
        """Take over a place of the unreachable member that has most; returns whether one had."""
        richest = max(
            (m for m in self._members.values() if not m.is_reachable and m is not member),
            key=lambda m: m.num_reachable,
            default=None,
        )
        if richest is None or richest.num_reachable < member.num_reachable + 2:
            return False
        for peer in richest.near:
            other = self._members[peer]
            if other.is_reachable and self._may_pair(member, other):
                unpair(richest, other)
                pair(member, other)
                self._drop_unreachable(richest)
                return True
        return False

    def _serve_the_poorest(self, member: OverlayMember) -> None:
        """Give the places of one that can be dialled to the unreachable that have fewest."""
        wanted = self._wanted_by_unreachable()
        poor = [
            other
            for other in self._members.values()
            if not other.is_reachable
            and other.num_reachable < wanted
            and self._may_pair(member, other)
        ]
        self._rng.shuffle(poor)
        poor.sort(key=lambda other: other.num_reachable)
        for other in poor[: max(0, self._num_places(member))]:
            pair(member, other)

    def _punch(self, member: OverlayMember) -> None:
        """Pair two that can't be dialled; neither gets more of them than of the others."""
        others = [
            other
            for other in self._members.values()
            if not other.is_reachable and self._can_punch(other) and self._may_pair(member, other)
        ]
        self._rng.shuffle(others)
        for other in others:
            if not self._can_punch(member):
                return
            pair(member, other)

    def _can_punch(self, member: OverlayMember) -> bool:
        has_few = member.num_unreachable < member.num_reachable
        return has_few and len(member.near) < self._settings.usual

    def _drop_unreachable(self, member: OverlayMember) -> None:
        """Part one that can't be dialled from as many of its kind as it must not have."""
        if member.is_reachable:
            return
        most = member.num_reachable if self._settings.can_punch else 0
        others = [self._members[peer] for peer in member.near]
        for other in [o for o in others if not o.is_reachable][most:]:
            unpair(member, other)

    def _join_islands(self) -> None:
        """Pair across the parts into which those that can be dialled have fallen."""
        seen: dict[PeerId, None] = {}
        for member in list(self._members.values()):
            if member.is_reachable and member.peer not in seen:
                if seen and self._bridge(island_of(self._members, member), seen):
                    self._join_islands()
                    return
                seen |= island_of(self._members, member)

    def _bridge(self, one: Iterable[PeerId], two: Iterable[PeerId]) -> bool:
        """Pair somebody of one part with somebody of the other, those with fewest first."""
        ones, twos = (
            sorted((self._members[p] for p in part), key=lambda m: m.num_reachable)
            for part in (one, two)
        )
        for here in filter(self._can_make_room, ones):
            for there in filter(self._can_make_room, twos):
                if self._may_pair(here, there):
                    self._pair_with_room(here, there)
                    return True
        return False

    # Small things.

    def _median_upload(self) -> float:
        uploads = [m.upload_bytes_per_s for m in self._members.values() if m.upload_bytes_per_s]
        return median(uploads) if uploads else 0.0

    def _target(self, member: OverlayMember) -> int:
        """Return how many reachable neighbours a reachable member is to have."""
        usual, typical = self._settings.usual, self._typical_upload
        if member.upload_bytes_per_s <= typical or not typical:
            return usual
        return int(usual * min(sqrt(member.upload_bytes_per_s / typical), _FAST_SHARE))

    def _wanted_by_unreachable(self) -> int:
        usual = self._settings.usual
        return usual - usual // 2 if self._settings.can_punch else usual

    def _num_places(self, member: OverlayMember) -> int:
        """Return how many more unreachable ones a reachable member can serve."""
        kept = max(self._target(member), member.num_reachable)
        return self._settings.most - kept - member.num_unreachable

    def _may_pair(self, one: OverlayMember, other: OverlayMember) -> bool:
        return (
            one is not other
            and other.peer not in one.near
            and not self.bans.are_apart(one.peer, other.peer)
        )

    def _can_make_room(self, member: OverlayMember) -> bool:
        return len(member.near) < self._settings.most or member.num_unreachable > 0

    def _pair_with_room(self, one: OverlayMember, other: OverlayMember) -> None:
        for member in (one, other):
            if len(member.near) >= self._settings.most:
                near = (self._members[peer] for peer in member.near)
                unpair(member, next(m for m in near if not m.is_reachable))
        pair(one, other)
