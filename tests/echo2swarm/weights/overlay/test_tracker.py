"""The overlay, after any history: symmetric, bounded, connected, stable, without the shut out."""

import random
from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2swarm.weights.overlay.bans import BAN_S, MIN_REPORTERS
from echo2swarm.weights.overlay.overlay import pair, unpair
from echo2swarm.weights.overlay.tracker import OverlaySettings, OverlayTracker
from protocols.ids import PeerId

SMALL = OverlaySettings(usual=4, least=3, most=8)
SPARSE = OverlaySettings(usual=2, least=2, most=4)
"""So few that the overlay would fall apart by itself."""
PUNCHING = OverlaySettings(usual=4, least=3, most=8, can_punch=True)
Event = tuple[str, int, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "leave", "no", "yes", "report", "rate"]),
        st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=120,
)
several = settings(max_examples=60, deadline=None)


def name(number: int) -> PeerId:
    return PeerId(f"peer-{number:04d}")


class World:
    """A tracker, and what it should know."""

    def __init__(self, options: OverlaySettings | None = None, seed: int = 0) -> None:
        self.tracker = OverlayTracker(random.Random(seed), options)
        self.unreachable: set[PeerId] = set()
        self.reports: set[tuple[PeerId, PeerId]] = set()
        self.banned: set[PeerId] = set()

    def happen(self, event: Event) -> None:
        kind, one, other = event
        peer, members = name(one), self.tracker.members
        match kind:
            case "join":
                self.tracker.joined(peer, is_reachable=peer not in self.unreachable)
            case "leave":
                self.tracker.left(peer)
            case "no":
                self.unreachable.add(peer)
                self.tracker.reach_changed(peer, is_reachable=False)
            case "yes":
                self.unreachable.discard(peer)
                self.tracker.reach_changed(peer, is_reachable=True)
            case "report":
                if one != other and {peer, name(other)} <= set(members):
                    self.reports.add((peer, name(other)))
                if self.tracker.reported(peer, name(other), 0.0):
                    self.banned.add(name(other))
            case "rate":
                self.tracker.rated(peer, 10.0 ** (other / 5))
            case _:
                raise AssertionError(kind)

    def near(self) -> dict[PeerId, tuple[PeerId, ...]]:
        return {peer: self.tracker.neighbours_of(peer) for peer in self.tracker.members}

    def pairs(self) -> set[frozenset[PeerId]]:
        return {frozenset((one, two)) for one, near in self.near().items() for two in near}

    def reachable(self) -> list[PeerId]:
        return [peer for peer in self.tracker.members if peer not in self.unreachable]


def joined(num: int, options: OverlaySettings | None = None, *, unreachable: int = 0) -> World:
    world = World(options)
    for number in range(num):
        world.happen(("join", number, 0))
        if number % 10 < unreachable:
            world.happen(("no", number, 0))
    return world


def islands(peers: list[PeerId], pairs: set[frozenset[PeerId]]) -> int:
    """Count the parts that ``peers`` fall into."""
    part = {peer: peer for peer in peers}

    def root(peer: PeerId) -> PeerId:
        while part[peer] != peer:
            peer = part[peer]
        return peer

    for one, two in pairs:
        if one in part and two in part:
            part[root(one)] = root(two)
    return len({root(peer) for peer in peers})


options = pytest.mark.parametrize("options", [SMALL, PUNCHING], ids=["plain", "punching"])


@options
@several
@given(events=EVENTS)
def test_after_any_history_the_overlay_keeps_its_rules(
    options: OverlaySettings, events: list[Event]
) -> None:
    world = World(options)
    for event in events:
        world.happen(event)

        near = world.near()
        for peer, given_ in near.items():
            assert len(set(given_)) == len(given_) <= options.most
            assert peer not in given_
            assert not world.banned & set(given_)
            assert all(peer in near[other] for other in given_)
            assert not any((peer, other) in world.reports for other in given_)
            if peer in world.unreachable:
                num_unreachable = len(world.unreachable & set(given_))
                assert 2 * num_unreachable <= len(given_) * options.can_punch
        assert not world.banned & near.keys()


@pytest.mark.parametrize("options", [SMALL, SPARSE], ids=["usual", "sparse"])
@several
@given(events=EVENTS.map(lambda events: [e for e in events if e[0] != "report"]))
def test_those_that_can_be_dialled_hang_together_after_any_history(
    options: OverlaySettings, events: list[Event]
) -> None:
    world = World(options)
    for event in events:
        world.happen(event)
        reachable = world.reachable()

        assert islands(reachable, world.pairs()) <= 1
        for peer in reachable:
            num_near = len(set(world.tracker.neighbours_of(peer)) & set(reachable))
            assert num_near >= min(1 if options is SPARSE else 2, len(reachable) - 1)


def test_an_overlay_that_fell_apart_is_joined_with_the_next_change() -> None:
    world = joined(6, SPARSE)
    members = world.tracker._members
    for pair_ in world.pairs():
        one, two = pair_
        unpair(members[one], members[two])
    for triangle in (range(3), range(3, 6)):
        for one_number, two_number in combinations(triangle, 2):
            pair(members[name(one_number)], members[name(two_number)])
    assert islands(world.reachable(), world.pairs()) == 2

    world.happen(("join", 6, 0))

    assert islands(world.reachable(), world.pairs()) == 1


@several
@given(events=EVENTS)
def test_the_same_seed_and_events_give_the_same_overlay(events: list[Event]) -> None:
    one, two = World(SMALL), World(SMALL)
    for event in events:
        one.happen(event)
        two.happen(event)

    assert one.near() == two.near()


@pytest.mark.parametrize("num", [1, 2, 5, 13])
def test_in_a_small_swarm_everybody_is_given_everybody(num: int) -> None:
    world = joined(num)

    assert world.pairs() == {frozenset(pair) for pair in combinations(world.tracker.members, 2)}


@pytest.mark.parametrize("num", [14, 15, 20, 64, 300])
def test_in_a_large_swarm_everybody_has_about_a_dozen(num: int) -> None:
    world = joined(num)
    degrees = [len(near) for near in world.near().values()]

    assert min(degrees) >= 7
    assert max(degrees) <= 12
    assert mean(degrees) > 10.5


def test_the_overlay_is_well_connected() -> None:
    world = joined(300)
    near = world.near()
    rng = random.Random(1)
    for _ in range(20):
        some = set(rng.sample(world.tracker.members, 100))
        leaving = sum(len(set(near[peer]) - some) for peer in some)

        # Of a random regular graph's links, two thirds leave any third; a ring's hardly any.
        assert leaving > 0.5 * sum(len(near[peer]) for peer in some)
    reached, front = {name(0)}, {name(0)}
    for _ in range(4):
        front = {other for peer in front for other in near[peer]} - reached
        reached |= front
    assert len(reached) == 300


def test_a_newcomer_moves_few_and_a_leaver_moves_none_but_its_neighbours() -> None:
    world = joined(100)
    before = world.pairs()
    world.happen(("join", 500, 0))
    gone = before - world.pairs()
    assert len(gone) <= 4
    assert len(world.tracker.neighbours_of(name(500))) >= 7

    before = world.pairs()
    world.happen(("leave", 50, 0))
    assert all(name(50) in pair for pair in before - world.pairs())


def test_places_that_leavers_leave_are_filled() -> None:
    world = joined(100)
    for number in range(0, 100, 2):
        world.happen(("leave", number, 0))
    degrees = [len(near) for near in world.near().values()]

    assert len(degrees) == 50
    assert min(degrees) >= 7
    assert mean(degrees) > 10


def test_heartbeats_without_news_move_nobody() -> None:
    world = joined(60, unreachable=3)
    for number in range(60):
        world.tracker.rated(name(number), 1e6)
    before = world.near()
    for number in range(60):
        world.tracker.joined(name(number))
        world.tracker.rated(name(number), 1.1e6)
        world.tracker.reach_changed(
            name(number), is_reachable=name(number) not in world.unreachable
        )

    assert world.near() == before


def test_fast_uploaders_get_more() -> None:
    world = joined(100)
    for number in [*range(100)] * 2:
        world.tracker.rated(name(number), 1e7 if number < 5 else 1e6)
    degrees = [len(near) for near in world.near().values()]

    assert min(degrees[:5]) >= 15
    assert mean(degrees[5:]) < 13


@pytest.mark.parametrize("tenths", [1, 3, 5, 8])
def test_the_unreachable_get_reachable_neighbours_and_share_their_places(tenths: int) -> None:
    world = joined(100, unreachable=tenths)
    near = world.near()
    of_unreachable = [near[peer] for peer in world.unreachable]

    assert not any(world.unreachable & set(given_) for given_ in of_unreachable)
    num_places = 12 * len(world.reachable())
    fair = min(12, num_places // len(world.unreachable))
    assert min(len(given_) for given_ in of_unreachable) >= fair - 2
    assert max(len(given_) for given_ in near.values()) <= 24


def test_reachable_newcomers_take_on_those_who_had_too_few() -> None:
    world = World()
    for number in range(20):
        world.happen(("no", number, 0))
        world.happen(("join", number, 0))
    assert not world.pairs()
    world.happen(("join", 100, 0))
    assert len(world.tracker.neighbours_of(name(100))) == 12
    for number in range(101, 120):
        world.happen(("join", number, 0))

    assert min(len(world.tracker.neighbours_of(name(number))) for number in range(20)) >= 11


def test_where_hole_punching_works_the_unreachable_trade_among_themselves_too() -> None:
    world = joined(40, OverlaySettings(can_punch=True), unreachable=5)

    for peer in world.unreachable:
        near = set(world.tracker.neighbours_of(peer))
        assert near & world.unreachable
        assert 2 * len(near & world.unreachable) <= len(near)


def test_two_reports_only_keep_apart_the_third_shuts_out_until_the_hour_is_over() -> None:
    world = joined(10)
    tracker, culprit = world.tracker, name(0)
    for number in range(1, MIN_REPORTERS):
        for _ in range(5):
            assert not tracker.reported(name(number), culprit, 10.0)
        assert culprit not in tracker.neighbours_of(name(number))
    assert culprit in tracker.neighbours_of(name(9))

    assert tracker.reported(name(MIN_REPORTERS), culprit, 20.0)
    assert tracker.neighbours_of(culprit) == ()
    tracker.joined(culprit)
    assert culprit not in tracker.members
    assert tracker.bans.forgive(20.0 + BAN_S - 1) == []
    assert tracker.bans.forgive(20.0 + BAN_S) == [culprit]
    tracker.joined(culprit)
    assert len(tracker.neighbours_of(culprit)) == 9


def test_a_lone_liar_bans_nobody_and_ends_up_alone() -> None:
    world = joined(20)
    for number in range(1, 20):
        world.tracker.reported(name(0), name(number), 0.0)

    assert len(world.tracker.members) == 20
    assert world.tracker.neighbours_of(name(0)) == ()
    assert min(len(world.tracker.neighbours_of(name(n))) for n in range(1, 20)) >= 7


def test_reports_of_strangers_and_old_ones_do_not_count() -> None:
    world = joined(10)
    for number in range(100, 110):
        assert not world.tracker.reported(name(number), name(0), 0.0)
    world.tracker.reported(name(1), name(0), 0.0)
    world.tracker.reported(name(2), name(0), BAN_S)

    assert not world.tracker.reported(name(3), name(0), BAN_S + 1)
    assert world.tracker.reported(name(4), name(0), BAN_S + 2)
