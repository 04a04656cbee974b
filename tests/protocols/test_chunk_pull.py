"""The pulling core: its rules one by one, and whole swarms of it."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from protocols.errors import LocalProtocolError
from protocols.ids import PeerId
from protocols.reasons import Reason
from tests.sim.network import SimNetwork
from tests.sim.pull_swarm import SOURCE, Character, PullSwarm

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SETTINGS = PullSettings()


def pull(
    num_chunks: int, *, has_hashes: bool = True, missing: Sequence[int] | None = None
) -> ChunkPull:
    return ChunkPull(
        me=PeerId("me"),
        num_chunks=num_chunks,
        missing=range(num_chunks) if missing is None else missing,
        has_hashes=has_hashes,
        source=SOURCE,
        rng=random.Random(0),
    )


def opened(core: ChunkPull, holder: PeerId, has: Sequence[int], now_s: float = 0) -> list[Effect]:
    bitmap = bitmap_of(has, num_chunks=core._num_chunks)
    return core.holder_opened(holder, bitmap, has_hashes=True, now_s=now_s)


def deliver(core: ChunkPull, holder: PeerId, index: int, now_s: float = 0) -> list[Effect]:
    effects = core.chunk_arrived(holder, index, now_s)
    return effects + core.chunk_checked(holder, index, is_good=True, now_s=now_s)


def asked(effects: Sequence[Effect], holder: PeerId | None = None) -> list[int]:
    return [e.index for e in effects if isinstance(e, AskChunk) and holder in (None, e.holder)]


# The rules, one by one.


def test_the_hashes_are_asked_for_first_and_of_one_holder() -> None:
    core = pull(3, has_hashes=False)
    assert opened(core, A, [0, 1]) == [AskHashes(A)]
    assert opened(core, B, [0, 1]) == []
    assert len(asked(core.hashes_checked(A, is_good=True, now_s=0))) == 2


def test_wrong_hashes_ban_their_sender_and_another_is_asked() -> None:
    core = pull(3, has_hashes=False)
    opened(core, A, [0])
    opened(core, B, [0])
    assert core.hashes_checked(A, is_good=False, now_s=1) == [
        DropHolder(A, "sent wrong hashes", Reason.BAD_CHUNK_HASH),
        AskHashes(B),
    ]
    assert core.is_banned(A)


def test_a_second_holder_is_asked_for_hashes_that_do_not_come() -> None:
    core = pull(3, has_hashes=False)
    opened(core, A, [0])
    opened(core, B, [0])
    assert core.next_deadline_s() == SETTINGS.endgame_after_s
    assert core.deadline_passed(SETTINGS.endgame_after_s) == [AskHashes(B)]
    assert core.next_deadline_s() == SETTINGS.chunk_timeout_s


def test_a_peer_gets_one_request_until_it_has_proven_itself_and_then_two() -> None:
    core = pull(9)
    effects = opened(core, A, range(9))
    assert len(asked(effects)) == 1
    assert len(asked(deliver(core, A, asked(effects)[0]))) == 2


def test_the_source_has_two_requests_from_the_start() -> None:
    assert len(asked(opened(pull(9), SOURCE, range(9)))) == 2


def test_no_chunk_is_asked_of_two_holders() -> None:
    core = pull(2)
    effects = opened(core, A, [0, 1]) + opened(core, B, [0, 1]) + opened(core, C, [0, 1])
    assert sorted(asked(effects)) == [0, 1]


def test_the_rarest_chunk_is_asked_for_first() -> None:
    core = pull(40)
    first = asked(opened(core, A, range(39)))[0]
    deliver(core, A, first)
    assert asked(opened(core, B, range(40))) == [39]


def test_peers_that_know_each_other_ask_the_source_for_different_chunks() -> None:
    cores = {
        name: ChunkPull(
            me=name,
            num_chunks=60,
            missing=range(60),
            has_hashes=True,
            source=SOURCE,
            rng=random.Random(0),
        )
        for name in (A, B, C)
    }
    fetched: dict[PeerId, list[int]] = {}
    for name, core in cores.items():
        for other in cores.keys() - {name}:
            opened(core, other, [])
        effects = opened(core, SOURCE, range(60))
        for _ in range(19):
            fetched.setdefault(name, []).extend(asked(effects))
            effects = deliver(core, SOURCE, fetched[name][-1])
    chunks = [index for indices in fetched.values() for index in indices]
    assert len(chunks) == 60
    assert len(set(chunks)) == 60


def test_the_source_is_not_asked_for_what_a_proven_peer_has() -> None:
    core = pull(6)
    first = asked(opened(core, A, range(5)))[0]
    deliver(core, A, first)
    assert asked(opened(core, SOURCE, range(6), 1)) == [5]


def test_the_source_is_asked_for_what_an_unproven_peer_claims() -> None:
    core = pull(6)
    opened(core, A, range(6))
    assert len(asked(opened(core, SOURCE, range(6)))) == 2


def test_the_source_helps_out_when_peers_would_take_too_long() -> None:
    core = pull(200)
    first = asked(opened(core, A, range(200)))[0]
    deliver(core, A, first)
    assert asked(opened(core, SOURCE, range(200), 1)) == []
    assert core.next_deadline_s() == 1 + SETTINGS.source_grace_s
    assert len(asked(core.deadline_passed(2), SOURCE)) == 2


def test_the_source_is_spared_while_peers_are_fast() -> None:
    core = pull(200)
    effects = opened(core, A, range(200))
    opened(core, SOURCE, range(200))
    for i in range(150):
        index = asked(effects, A)[0]
        effects = deliver(core, A, index, i / 50) + asked_again(core, A)
    assert asked(core.deadline_passed(3.5), SOURCE) == []


def asked_again(core: ChunkPull, holder: PeerId) -> list[Effect]:
    """What ``holder`` still owes, as if it had just been asked."""
    return [AskChunk(holder, index) for index in core._holders[holder].chunks]


def test_a_silent_holder_is_dropped_and_its_chunk_asked_elsewhere() -> None:
    core = pull(2, missing=[0])
    opened(core, A, [0])
    assert asked(opened(core, B, [0], 1)) == []
    effects = core.deadline_passed(SETTINGS.chunk_timeout_s)
    assert effects == [DropHolder(A, "silent"), AskChunk(B, 0)]
    assert not core.is_banned(A)


def test_a_holder_that_is_silent_again_and_again_is_banned() -> None:
    core = pull(1)
    for attempt in range(3):
        assert not core.is_banned(A)
        now_s = attempt * SETTINGS.chunk_timeout_s
        opened(core, A, [0], now_s)
        core.deadline_passed(now_s + SETTINGS.chunk_timeout_s)
    assert core.is_banned(A)


def test_at_the_end_the_source_is_asked_before_strangers() -> None:
    core = pull(1)
    opened(core, A, [0])
    opened(core, B, [0])
    opened(core, SOURCE, [0])
    assert core.deadline_passed(SETTINGS.endgame_after_s) == [AskChunk(SOURCE, 0)]


def test_at_the_end_a_slow_chunk_is_asked_for_once_more_and_not_twice() -> None:
    core = pull(1)
    opened(core, A, [0])
    opened(core, B, [0])
    opened(core, C, [0])
    assert core.next_deadline_s() == SETTINGS.endgame_after_s
    assert asked(core.deadline_passed(SETTINGS.endgame_after_s - 0.1)) == []
    assert len(asked(core.deadline_passed(SETTINGS.endgame_after_s))) == 1
    assert asked(core.deadline_passed(2 * SETTINGS.endgame_after_s)) == []


def test_before_the_end_a_slow_chunk_is_not_asked_for_again() -> None:
    core = pull(2)  # chunk 1 is nowhere yet
    opened(core, A, [0])
    assert asked(opened(core, B, [0])) == []
    assert asked(core.deadline_passed(10)) == []


def test_a_chunk_that_is_here_is_not_asked_for_again_when_its_second_holder_is_lost() -> None:
    core = pull(2)
    opened(core, C, [1])
    opened(core, A, [0])
    opened(core, B, [0])
    core.deadline_passed(5)
    assert deliver(core, B, 0, 6) == []
    assert core.holder_lost(A, 7) == []


def test_a_wrong_chunk_bans_its_sender_and_is_asked_elsewhere() -> None:
    core = pull(1)
    opened(core, A, [0])
    opened(core, B, [0])
    core.chunk_arrived(A, 0, 1)
    assert core.chunk_checked(A, 0, is_good=False, now_s=1) == [
        DropHolder(A, "chunk 0 is wrong", Reason.BAD_CHUNK_HASH),
        AskChunk(B, 0),
    ]
    assert opened(core, A, [0], 2) == [DropHolder(A, "banned")]


def test_a_wrong_chunk_of_a_holder_that_has_left_is_still_held_against_it() -> None:
    core = pull(1)
    opened(core, A, [0])
    core.chunk_arrived(A, 0, 1)
    core.holder_lost(A, 1)
    effects = core.chunk_checked(A, 0, is_good=False, now_s=1)
    assert effects == [DropHolder(A, "chunk 0 is wrong", Reason.BAD_CHUNK_HASH)]
    assert asked(opened(core, B, [0], 2)) == [0]


def test_a_chunk_that_is_being_checked_is_not_asked_for() -> None:
    core = pull(1)
    opened(core, A, [0])
    core.chunk_arrived(A, 0, 1)
    assert opened(core, B, [0], 1) == []
    assert core.is_missing(0)
    assert core.chunk_checked(A, 0, is_good=True, now_s=1) == [Finished()]
    assert core.is_finished


def test_a_chunk_that_comes_twice_is_no_fault() -> None:
    core = pull(2)
    opened(core, A, [0])
    opened(core, B, [0])
    core.deadline_passed(5)
    core.chunk_arrived(B, 0, 6)
    core.chunk_checked(B, 0, is_good=True, now_s=6)
    assert not core.is_missing(0)
    assert core.chunk_arrived(A, 0, 6) == []


def test_a_chunk_that_was_not_asked_for_is_a_fault() -> None:
    core = pull(2)
    opened(core, A, [0])
    assert core.chunk_arrived(A, 1, 0) == [DropHolder(A, "sent a chunk unasked", Reason.MALFORMED)]


def test_hashes_that_were_not_asked_for_are_a_fault() -> None:
    core = pull(2)
    opened(core, A, [0])
    assert core.hashes_checked(A, is_good=True, now_s=0) == [
        DropHolder(A, "sent hashes unasked", Reason.MALFORMED)
    ]


@pytest.mark.parametrize("bitmap", [b"", b"\xff", b"\0\0"])
def test_a_bitmap_that_does_not_fit_is_a_fault(bitmap: bytes) -> None:
    core = pull(3)
    (effect,) = core.holder_opened(A, bitmap, has_hashes=True, now_s=0)
    assert isinstance(effect, DropHolder)
    assert effect.fault == Reason.MALFORMED


def test_news_of_a_chunk_beyond_the_last_is_a_fault() -> None:
    core = pull(3)
    opened(core, A, [])
    (effect,) = core.have_received(A, [3], 0)
    assert isinstance(effect, DropHolder)
    assert effect.fault == Reason.MALFORMED


def test_a_refused_chunk_is_asked_elsewhere_and_not_of_the_same_holder() -> None:
    core = pull(1)
    opened(core, A, [0])
    assert core.refused(A, 0, Reason.UNKNOWN_CHUNK, 0) == []
    assert asked(opened(core, B, [0])) == [0]


def test_a_holder_that_refuses_what_it_offers_again_and_again_is_dropped() -> None:
    core = pull(9)
    index = asked(opened(core, A, range(9)))[0]
    for _ in range(2):
        (index,) = asked(core.refused(A, index, Reason.UNKNOWN_CHUNK, 0))
    assert core.refused(A, index, Reason.UNKNOWN_CHUNK, 0) == [
        DropHolder(A, "has not what it says", Reason.UNKNOWN_CHUNK)
    ]


def test_a_holder_without_the_payload_is_dropped_and_may_come_back() -> None:
    core = pull(1)
    opened(core, A, [0])
    assert core.refused(A, None, Reason.UNKNOWN_PAYLOAD, 0) == [
        DropHolder(A, "refused: unknown_payload")
    ]
    assert asked(opened(core, A, [0], 1)) == [0]


def test_what_a_lost_holder_owed_is_asked_elsewhere() -> None:
    core = pull(1)
    opened(core, A, [0])
    opened(core, B, [0])
    assert core.holder_lost(A, 0) == [AskChunk(B, 0)]


def test_only_what_is_missing_is_asked_for() -> None:
    core = pull(5, missing=[3])
    assert asked(opened(core, SOURCE, range(5))) == [3]


def test_opening_a_holder_twice_is_our_own_mistake() -> None:
    core = pull(1)
    opened(core, A, [0])
    with pytest.raises(LocalProtocolError):
        opened(core, A, [0])


# Whole swarms.

characters = st.lists(st.sampled_from(Character), max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_honest=st.integers(1, 4),
    others=characters,
    num_chunks=st.integers(1, 60),
)
def test_every_honest_node_ends_with_the_payload_whoever_else_is_there(
    seed: int, num_honest: int, others: list[Character], num_chunks: int
) -> None:
    network = SimNetwork(seed=seed)
    swarm = PullSwarm(
        network,
        num_chunks=num_chunks,
        characters=[Character.HONEST] * num_honest + others,
    )

    network.run(until_s=600)

    for peer in swarm.honest:
        assert peer.held == set(range(num_chunks))
        assert peer.finished_at_s < 600
        culprits = {swarm.peers[name].character for name, _ in peer.faults}
        assert culprits <= {Character.GARBAGE, Character.REFUSING}
    assert swarm.max_outstanding <= SETTINGS.max_outstanding


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    deaths_s=st.lists(st.floats(0, 2), min_size=1, max_size=3),
    num_chunks=st.integers(1, 60),
)
def test_peers_that_die_prevent_nobody(seed: int, deaths_s: list[float], num_chunks: int) -> None:
    network = SimNetwork(seed=seed)
    swarm = PullSwarm(network, num_chunks=num_chunks, characters=[Character.HONEST] * 5)
    for i, death_s in enumerate(deaths_s):
        network.call_at(death_s, lambda i=i: swarm.kill(PeerId(f"peer{i}")))  # type: ignore[misc]

    network.run(until_s=600)

    assert len(swarm.honest) == 5 - len(deaths_s)
    assert all(peer.held == set(range(num_chunks)) for peer in swarm.honest)


@pytest.mark.parametrize("seed", range(5))
def test_with_three_nodes_on_equal_links_the_learner_sends_little_more_than_one_copy(
    seed: int,
) -> None:
    network = SimNetwork(seed=seed)
    swarm = PullSwarm(network, num_chunks=300, characters=[Character.HONEST] * 3)

    network.run(until_s=600)

    assert swarm.source_copies <= 1.08
    least_s = 300 * 0.02  # one copy through the learner's uplink
    assert max(peer.finished_at_s for peer in swarm.honest) <= 1.2 * least_s
    assert swarm.num_asked_twice == 0


@pytest.mark.parametrize(
    "bad", [Character.GARBAGE, Character.SILENT, Character.TEASING, Character.REFUSING]
)
def test_one_bad_peer_of_four_hardly_delays_the_others(bad: Character) -> None:
    network = SimNetwork(seed=1)
    swarm = PullSwarm(network, num_chunks=500, characters=[Character.HONEST] * 3 + [bad])

    network.run(until_s=600)

    assert max(peer.finished_at_s for peer in swarm.honest) <= 1.35 * 500 * 0.02
    assert swarm.source_copies <= 1.3


def test_peers_with_slow_uplinks_do_not_hold_the_payload_back() -> None:
    network = SimNetwork(seed=1)
    swarm = PullSwarm(
        network,
        num_chunks=300,
        characters=[Character.HONEST] * 3,
        uplink_factor=[0.05, 0.05, 0.05],
    )

    network.run(until_s=600)

    # A star takes 3; waiting for the peers instead, that are 20 times as slow, takes 14.
    assert max(peer.finished_at_s for peer in swarm.honest) <= 6 * 300 * 0.02
