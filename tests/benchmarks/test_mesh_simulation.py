"""Whole broadcasts on virtual time: what holds whoever takes part."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.mesh_simulation import Character, PeerSpec, Scenario, simulate
from protocols.reasons import Reason

MBIT = 125_000.0
EQUAL = PeerSpec(up_bytes_per_s=25 * MBIT, down_bytes_per_s=25 * MBIT)
CHUNK_BYTES = 128 * 1024


def scenario(peers: Sequence[PeerSpec], *, num_chunks: int = 300, seed: int = 0) -> Scenario:
    return Scenario(
        payload_bytes=num_chunks * CHUNK_BYTES,
        chunk_bytes=CHUNK_BYTES,
        source_bytes_per_s=25 * MBIT,
        peers=peers,
        latency_s=(0.02, 0.04),
        seed=seed,
        until_s=3600,
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_honest=st.integers(1, 4),
    others=st.lists(st.sampled_from(Character), max_size=4),
    num_chunks=st.integers(1, 60),
)
def test_every_honest_peer_gets_everything_whoever_else_is_there(
    seed: int, num_honest: int, others: list[Character], num_chunks: int
) -> None:
    peers = [EQUAL] * num_honest + [replace(EQUAL, character=each) for each in others]
    result = simulate(scenario(peers, num_chunks=num_chunks, seed=seed))
    assert max(result.finished_at_s) < inf
    culprits = {
        character
        for i, character in enumerate(others)
        if f"peer{num_honest + i}" in {whom for _, whom, _ in result.bans}
    }
    banned = {whom for _, whom, _ in result.bans}
    assert banned <= {f"peer{num_honest + i}" for i in range(len(others))}
    assert culprits <= {Character.GARBAGE, Character.REFUSING}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    deaths_s=st.lists(st.floats(0, 4), min_size=1, max_size=4),
    joins_s=st.lists(st.floats(0, 20), max_size=3),
    num_chunks=st.integers(1, 60),
)
def test_peers_that_die_or_come_late_prevent_nobody(
    seed: int, deaths_s: list[float], joins_s: list[float], num_chunks: int
) -> None:
    peers = [
        *[EQUAL] * 2,
        *[replace(EQUAL, dies_at_s=death_s) for death_s in deaths_s],
        *[replace(EQUAL, joins_at_s=join_s) for join_s in joins_s],
    ]
    result = simulate(scenario(peers, num_chunks=num_chunks, seed=seed))
    assert len(result.finished_at_s) == 2 + len(joins_s)
    assert max(result.finished_at_s) < inf


@pytest.mark.parametrize("num_peers", [1, 3, 8])
def test_on_equal_links_everybody_is_close_to_the_bound_and_the_source_sends_one_copy(
    num_peers: int,
) -> None:
    result = simulate(scenario([EQUAL] * num_peers))
    assert max(result.finished_at_s) <= 1.15 * result.bound_s
    assert result.source_copies <= 1.05
    assert result.copies <= 1.01


@pytest.mark.parametrize("bad", [c for c in Character if c is not Character.HONEST])
def test_one_bad_peer_of_eight_hardly_delays_the_others(bad: Character) -> None:
    result = simulate(scenario([EQUAL] * 7 + [replace(EQUAL, character=bad)]))
    assert max(result.finished_at_s) <= 1.35 * result.bound_s
    assert result.source_copies <= 1.35


def test_a_peer_that_sends_garbage_is_banned_by_all_for_its_wrong_bytes() -> None:
    result = simulate(scenario([EQUAL] * 7 + [replace(EQUAL, character=Character.GARBAGE)]))
    assert {why for _, _, why in result.bans} == {Reason.BAD_CHUNK_HASH}
    assert {whom for _, whom, _ in result.bans} == {"peer7"}


def test_a_quarter_that_dies_hardly_delays_the_others() -> None:
    peers = [EQUAL] * 6 + [replace(EQUAL, dies_at_s=4.0)] * 2
    result = simulate(scenario(peers))
    assert max(result.finished_at_s) <= 1.35 * result.bound_s


def test_who_claims_a_fast_uplink_and_has_a_slow_one_hardly_delays_the_others() -> None:
    liar = PeerSpec(
        up_bytes_per_s=1 * MBIT, down_bytes_per_s=25 * MBIT, thought_up_bytes_per_s=1000 * MBIT
    )
    lied_to = simulate(scenario([EQUAL] * 7 + [liar]))
    told_the_truth = simulate(scenario([EQUAL] * 7 + [replace(liar, thought_up_bytes_per_s=None)]))
    assert max(lied_to.finished_at_s) <= 1.15 * max(told_the_truth.finished_at_s)


def test_a_slow_downlink_delays_its_owner_and_nobody_else() -> None:
    slow = PeerSpec(up_bytes_per_s=25 * MBIT, down_bytes_per_s=5 * MBIT)
    result = simulate(scenario([EQUAL] * 7 + [slow]))
    *others, last = result.finished_at_s
    bound_s = simulate(scenario([EQUAL] * 8)).bound_s
    assert max(others) <= 1.3 * bound_s
    assert last <= 1.2 * result.bound_s


def test_peers_that_nobody_can_dial_get_everything_and_pass_it_on() -> None:
    hidden = replace(EQUAL, can_be_dialled=False)
    result = simulate(scenario([EQUAL] * 4 + [hidden] * 4))
    # The bound knows nothing of pairs that can't meet.
    assert max(result.finished_at_s) <= 1.5 * result.bound_s
    assert result.source_copies <= 1.3


def test_peers_with_slow_uplinks_do_not_hold_the_payload_back() -> None:
    slow = PeerSpec(up_bytes_per_s=1 * MBIT, down_bytes_per_s=100 * MBIT)
    result = simulate(scenario([slow] * 3))
    # Three copies through the source's uplink, but for what the peers add.
    assert max(result.finished_at_s) <= 1.35 * result.bound_s


def test_a_broadcast_survives_a_source_that_goes_away_for_a_while() -> None:
    result = simulate(replace(scenario([EQUAL] * 8), source_away_s=(4.0, 9.0)))
    assert max(result.finished_at_s) <= 1.35 * result.bound_s + 5.0 + 5.0  # away, and a retry
    assert result.source_copies <= 1.35


def test_the_same_seed_gives_the_same_broadcast() -> None:
    peers = [EQUAL] * 4 + [replace(EQUAL, character=Character.SILENT)]
    assert simulate(scenario(peers, seed=5)) == simulate(scenario(peers, seed=5))
    assert simulate(scenario(peers, seed=5)) != simulate(scenario(peers, seed=6))
