"""The pulling core: its rules one by one, and whole swarms of it."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.chunk_download import ChunkDownload
from protocols.chunk_effects import AskChunk, AskHashes, DropPeer, Effect, Finished
from protocols.chunk_source import ChunkSource, DownloadSettings
from protocols.chunks import bitmap_of
from protocols.errors import LocalProtocolError
from protocols.ids import PeerId
from protocols.reasons import Reason

SOURCE = PeerId("source")
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
SETTINGS = DownloadSettings()


def pull(
    num_chunks: int, *, has_hashes: bool = True, missing: Sequence[int] | None = None
) -> ChunkDownload:
    return ChunkDownload(
        num_chunks=num_chunks,
        missing=range(num_chunks) if missing is None else missing,
        has_hashes=has_hashes,
        source=SOURCE,
        rng=random.Random(0),
    )


def opened(
    core: ChunkDownload, holder: PeerId, has: Sequence[int], now_s: float = 0
) -> list[Effect]:
    bitmap = bitmap_of(has, num_chunks=core._num_chunks)
    return core.holder_opened(holder, bitmap, has_hashes=True, now_s=now_s)


def deliver(core: ChunkDownload, holder: PeerId, index: int, now_s: float = 0) -> list[Effect]:
    effects = core.chunk_arrived(holder, index, now_s)
    return effects + core.chunk_checked(holder, index, is_good=True, now_s=now_s)


def asked(effects: Sequence[Effect], holder: PeerId | None = None) -> list[int]:
    return [e.index for e in effects if isinstance(e, AskChunk) and holder in (None, e.holder)]


# The rules, one by one.


class Pacer:
    """Lets one chunk be asked for every so many seconds."""

    def __init__(self, gap_s: float) -> None:
        self.gap_s = gap_s
        self.next_s = 0.0
        self.num_bytes = 0

    def wait_s(self, now_s: float) -> float:
        return max(0.0, self.next_s - now_s)

    def asked(self, num_bytes: int, now_s: float) -> None:
        self.num_bytes += num_bytes
        self.next_s = max(now_s, self.next_s) + self.gap_s


def test_a_pacer_holds_orders_back_and_says_when_to_go_on() -> None:
    pacer = Pacer(2.0)
    core = ChunkDownload(
        num_chunks=6,
        missing=range(6),
        has_hashes=True,
        source=SOURCE,
        rng=random.Random(0),
        pacer=pacer,
        chunk_bytes=1000,
    )
    assert len(asked(opened(core, SOURCE, range(6)))) == 1
    assert asked(opened(core, A, range(6))) == []
    assert core.next_deadline_s() <= 2.0
    assert asked(core.deadline_passed(1.0)) == []
    assert core.next_deadline_s() <= 2.0
    now_s, orders = 0.0, [1]
    holders = {SOURCE}
    while not core.is_finished:
        now_s += 2.0
        effects = core.deadline_passed(now_s)
        for holder in (SOURCE, A):
            for index in list(core._holders[holder].chunks):
                holders.add(holder)
                effects += deliver(core, holder, index, now_s)
        orders.append(len(asked(effects)))
    assert max(orders) == 1
    assert holders == {SOURCE, A}
    assert pacer.num_bytes == 6000


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
        DropPeer(A, "sent wrong hashes", Reason.BAD_CHUNK_HASH),
        AskHashes(B),
    ]
    assert core.is_banned(A)


def test_a_second_holder_is_asked_for_hashes_that_do_not_come() -> None:
    core = pull(3, has_hashes=False)
    opened(core, A, [0])
    opened(core, B, [0])
    assert core.next_deadline_s() == SETTINGS.endgame_after_s
    assert core.deadline_passed(SETTINGS.endgame_after_s) == [AskHashes(B)]
    assert core.next_deadline_s() == SETTINGS.silence_s


def test_a_peer_gets_one_request_until_it_has_proven_itself_and_then_two() -> None:
    core = pull(9)
    effects = opened(core, A, range(9))
    assert len(asked(effects)) == 1
    assert len(asked(deliver(core, A, asked(effects)[0], 1))) == 2


def test_a_holder_has_as_many_requests_as_keep_its_link_busy() -> None:
    """It sends a chunk every 10 ms, 100 ms away: ten or eleven on their way."""
    core = pull(400)
    sent_s, waiting = 0.0, asked(opened(core, SOURCE, range(400)))
    asked_s = dict.fromkeys(waiting, 0.0)
    for _ in range(100):
        index = waiting.pop(0)
        sent_s = max(sent_s, asked_s[index] + 0.09) + 0.01
        more = asked(deliver(core, SOURCE, index, sent_s))
        asked_s |= dict.fromkeys(more, sent_s)
        waiting += more
    assert 10 <= len(waiting) <= 12


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_there_are_never_fewer_or_more_requests_than_set(wait_s: float, pace_s: float) -> None:
    holder = ChunkSource(has_hashes=True)
    holder.arrived(0.0, wait_s)
    holder.arrived(0.0, wait_s + pace_s)
    few = DownloadSettings(min_outstanding=3, max_outstanding=7)
    assert 3 <= holder.window(few) <= 7


def test_a_holder_that_was_quick_is_silent_sooner() -> None:
    core = pull(9)
    for second, index in enumerate(asked(opened(core, SOURCE, range(9)))):
        deliver(core, SOURCE, index, (second + 1) / 100)
    silent_at_s = 0.02 + SETTINGS.min_silence_s
    assert silent_at_s < SETTINGS.silence_s
    assert DropPeer(SOURCE, "silent") not in core.deadline_passed(silent_at_s - 0.01)
    assert DropPeer(SOURCE, "silent") in core.deadline_passed(silent_at_s)


def test_a_slow_holder_that_keeps_sending_is_not_silent() -> None:
    core = pull(9)
    now_s, waiting = 0.0, asked(opened(core, SOURCE, range(9)))
    while waiting:
        now_s += SETTINGS.silence_s - 1
        assert DropPeer(SOURCE, "silent") not in core.deadline_passed(now_s)
        waiting += asked(deliver(core, SOURCE, waiting.pop(0), now_s))
    assert core.is_finished


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="in order"):
        DownloadSettings(min_outstanding=5, max_outstanding=4)


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


def test_a_silent_holder_is_dropped_and_its_chunk_asked_elsewhere() -> None:
    core = pull(2, missing=[0])
    opened(core, A, [0])
    assert asked(opened(core, B, [0], 0.1)) == []
    effects = core.deadline_passed(SETTINGS.silence_s)
    assert effects == [DropPeer(A, "silent"), AskChunk(B, 0)]
    assert not core.is_banned(A)


def test_a_holder_that_is_silent_again_and_again_is_banned() -> None:
    core = pull(1)
    for attempt in range(3):
        assert not core.is_banned(A)
        now_s = attempt * SETTINGS.silence_s
        opened(core, A, [0], now_s)
        core.deadline_passed(now_s + SETTINGS.silence_s)
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


def test_before_the_end_a_slow_chunk_is_asked_for_again_much_later() -> None:
    core = pull(2)  # chunk 1 is nowhere yet
    opened(core, A, [0])
    assert asked(opened(core, B, [0])) == []
    assert asked(core.deadline_passed(2 * SETTINGS.endgame_after_s)) == []
    assert asked(core.deadline_passed(4 * SETTINGS.endgame_after_s)) == [0]


def test_before_the_end_a_holder_that_has_something_new_is_not_asked_for_a_slow_chunk() -> None:
    core = pull(3)  # chunk 2 is nowhere yet
    opened(core, A, [0])
    assert asked(opened(core, B, [0, 1])) == [1]
    assert asked(core.deadline_passed(4 * SETTINGS.endgame_after_s)) == []


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
        DropPeer(A, "chunk 0 is wrong", Reason.BAD_CHUNK_HASH),
        AskChunk(B, 0),
    ]
    assert opened(core, A, [0], 2) == [DropPeer(A, "banned")]


def test_a_wrong_chunk_of_a_holder_that_has_left_is_still_held_against_it() -> None:
    core = pull(1)
    opened(core, A, [0])
    core.chunk_arrived(A, 0, 1)
    core.holder_lost(A, 1)
    effects = core.chunk_checked(A, 0, is_good=False, now_s=1)
    assert effects == [DropPeer(A, "chunk 0 is wrong", Reason.BAD_CHUNK_HASH)]
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
    assert core.chunk_arrived(A, 1, 0) == [DropPeer(A, "sent a chunk unasked", Reason.MALFORMED)]


def test_hashes_that_were_not_asked_for_are_a_fault() -> None:
    core = pull(2)
    opened(core, A, [0])
    assert core.hashes_checked(A, is_good=True, now_s=0) == [
        DropPeer(A, "sent hashes unasked", Reason.MALFORMED)
    ]


@pytest.mark.parametrize("bitmap", [b"", b"\xff", b"\0\0"])
def test_a_bitmap_that_does_not_fit_is_a_fault(bitmap: bytes) -> None:
    core = pull(3)
    (effect,) = core.holder_opened(A, bitmap, has_hashes=True, now_s=0)
    assert isinstance(effect, DropPeer)
    assert effect.fault == Reason.MALFORMED


def test_news_of_a_chunk_beyond_the_last_is_a_fault() -> None:
    core = pull(3)
    opened(core, A, [])
    (effect,) = core.have_received(A, [3], 0)
    assert isinstance(effect, DropPeer)
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
        DropPeer(A, "has not what it says", Reason.UNKNOWN_CHUNK)
    ]


def test_a_holder_without_the_payload_is_dropped_and_may_come_back() -> None:
    core = pull(1)
    opened(core, A, [0])
    assert core.refused(A, None, Reason.UNKNOWN_PAYLOAD, 0) == [
        DropPeer(A, "refused: unknown_payload")
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
