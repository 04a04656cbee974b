"""By which way a version arrives soonest."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.publish import build_manifest
from echo2swarm.weights.update_plan import (
    AnchorUpdate,
    DeltaUpdate,
    FullUpdate,
    UpdateFacts,
    choose_way,
    first_fetched,
    is_still_offered,
    is_worth_finishing,
)
from protocols.ids import PolicyVersion
from protocols.manifest import Delta, FileRef, PayloadRef, PolicyManifest, base_of
from tests.echo2swarm.weights.made import RULES

SIZE = 1_000_000_000
ALL = 10**12
"""Bytes per second of a link that makes every transfer short."""


def ref(name: str, size: int = SIZE) -> PayloadRef:
    return PayloadRef(name.encode().ljust(32, b"."), size, 2**20, (FileRef("f", size),))


def weights(version: int) -> PayloadRef:
    return ref(f"w{version}")


def delta(base: int, version: int, size: int, codec: str = "xor-1") -> Delta:
    return Delta(base, weights(base).root_sha256, codec, ref(f"d{base}-{version}", size))


def manifest(version: int, **sizes: int) -> PolicyManifest:
    """With deltas on the versions named, as in ``v3=1000``."""
    return build_manifest(
        run_id="demo",
        version=PolicyVersion(version),
        weights=weights(version),
        weights_sha256=bytes(32),
        assets=ref("a", 10),
        rules=RULES,  # S is 1: two versions back are bases, and the anchor
        deltas=tuple(delta(int(base[1:]), version, size) for base, size in sizes.items()),
    )


def facts(
    here: dict[PayloadRef, int] | None = None,
    *,
    bytes_per_s: float | None = 10e6,
    publish_s: float | None = None,
    codecs: tuple[str, ...] = ("xor-1",),
) -> UpdateFacts:
    """With so many bytes here of some payloads."""
    held = {each.root_sha256: num for each, num in (here or {}).items()}
    return UpdateFacts(
        missing_bytes=lambda each: each.size_bytes - held.get(each.root_sha256, 0),
        bytes_per_s=bytes_per_s,
        publish_s=publish_s,
        codecs=codecs,
    )


def whole(version: int) -> dict[PayloadRef, int]:
    return {weights(version): SIZE}


def test_who_holds_nothing_fetches_the_weights_whole() -> None:
    assert choose_way(manifest(4, v3=20_000_000), facts()) == FullUpdate()


def test_who_holds_the_base_fetches_the_delta() -> None:
    newest = manifest(4, v3=20_000_000)
    assert choose_way(newest, facts(whole(3))) == DeltaUpdate(newest.deltas[0])


def test_of_two_bases_held_the_newest_is_taken_as_by_everybody() -> None:
    newest = manifest(4, v2=19_000_000, v3=20_000_000)
    assert choose_way(newest, facts(whole(3) | whole(2))) == DeltaUpdate(newest.deltas[1])


def test_a_delta_on_an_older_base_that_is_nearly_here_is_finished() -> None:
    newest = manifest(4, v2=30_000_000, v3=20_000_000)
    nearly = {newest.deltas[0].payload: 29_000_000}
    assert choose_way(newest, facts(whole(3) | whole(2) | nearly)) == DeltaUpdate(newest.deltas[0])


def test_what_is_nearly_here_is_finished_rather_than_patched() -> None:
    newest = manifest(4, v3=20_000_000)
    nearly = whole(3) | {weights(4): SIZE - 1_000_000}
    assert choose_way(newest, facts(nearly)) == FullUpdate()


def test_weights_that_are_here_need_nothing() -> None:
    newest = manifest(4, v3=1)
    assert choose_way(newest, facts(whole(3) | whole(4))) == FullUpdate()


def test_on_a_link_faster_than_patching_the_weights_come_whole() -> None:
    newest = manifest(4, v3=20_000_000)
    assert choose_way(newest, facts(whole(3), bytes_per_s=ALL)) == FullUpdate()


def test_a_base_that_is_nearly_here_is_a_bridge() -> None:
    newest = manifest(4, v3=20_000_000)
    nearly = {weights(3): SIZE - 1_000_000}
    way = choose_way(newest, facts(nearly))
    assert way == AnchorUpdate(newest.deltas[0])
    assert first_fetched(newest, way) == base_of(newest, newest.deltas[0]) == weights(3)


def test_a_delta_in_an_unknown_codec_is_passed_over() -> None:
    newest = msgspec.structs.replace(manifest(4), deltas=(delta(3, 4, 1000, "xor-9"),))
    assert choose_way(newest, facts(whole(3))) == FullUpdate()


def test_without_trust_in_deltas_the_weights_come_whole() -> None:
    assert choose_way(manifest(4, v3=1000), facts(whole(3), codecs=())) == FullUpdate()


def test_who_is_too_slow_for_any_version_fetches_the_anchor() -> None:
    newest = manifest(60, v59=20_000_000, v58=30_000_000, v50=80_000_000)
    slow = facts(publish_s=30.0)  # 100 s for all, and after 60 s it is no base any more
    assert choose_way(newest, slow) == AnchorUpdate(newest.deltas[2])
    assert choose_way(newest, facts(publish_s=60.0)) == FullUpdate()


def test_the_anchor_is_fetched_to_its_end_however_many_versions_pass() -> None:
    started = manifest(60, v59=20_000_000, v58=30_000_000, v50=80_000_000)
    anchor = base_of(started, started.deltas[2])
    for version in range(61, 90):
        sizes = {f"v{version - 1}": 20_000_000, f"v{version - 2}": 30_000_000, "v50": 99_000_000}
        newest = manifest(version, **sizes)
        now = facts({anchor: (version - 60) * 30_000_000}, publish_s=30.0)
        assert is_worth_finishing(started, anchor, newest, now) is True


def test_a_transfer_of_an_older_version_goes_on_if_it_is_a_bridge() -> None:
    newest = manifest(4, v3=20_000_000)
    assert is_worth_finishing(manifest(3), weights(3), newest, facts({weights(3): 400_000_000}))


def test_a_transfer_that_has_hardly_begun_gives_way_to_the_newest() -> None:
    newest = manifest(4, v3=20_000_000)
    now = facts({weights(3): 10_000_000})
    assert is_worth_finishing(manifest(3), weights(3), newest, now) is False


def test_a_delta_that_is_nearly_here_is_finished_before_the_next_step() -> None:
    current = manifest(3, v2=20_000_000)
    newest = manifest(4, v3=2_000_000, v2=120_000_000)
    nearly = whole(2) | {current.deltas[0].payload: 19_000_000}
    assert is_worth_finishing(current, current.deltas[0].payload, newest, facts(nearly)) is True


def test_a_delta_that_has_hardly_begun_gives_way_to_the_one_that_leads_further() -> None:
    current = manifest(3, v2=20_000_000)
    newest = manifest(4, v3=20_000_000, v2=21_000_000)
    begun = whole(2) | {current.deltas[0].payload: 1_000}
    assert is_worth_finishing(current, current.deltas[0].payload, newest, facts(begun)) is False


def test_without_a_step_from_one_to_the_other_there_is_nothing_to_compare() -> None:
    assert is_worth_finishing(manifest(3), weights(3), manifest(4), facts()) is None


@pytest.mark.parametrize(("newest", "expected"), [(61, True), (62, False)])
def test_weights_are_still_offered_while_they_are_among_those_kept(
    newest: int, expected: bool
) -> None:
    started = manifest(60, v50=80_000_000)
    assert RULES.max_staleness + 1 == 2
    now = manifest(newest, v50=80_000_000)
    assert is_still_offered(started, weights(60), now) is expected


def test_a_delta_is_still_offered_with_the_newest_two_versions() -> None:
    started = manifest(60, v59=20_000_000)
    payload = started.deltas[0].payload
    assert is_still_offered(started, payload, manifest(61))
    assert not is_still_offered(started, payload, manifest(62))


def test_an_anchor_is_offered_as_long_as_it_is_one() -> None:
    started = manifest(60, v59=20_000_000, v50=80_000_000)
    anchor = base_of(started, started.deltas[1])
    assert is_still_offered(started, anchor, manifest(99, v98=20_000_000, v50=90_000_000))
    assert not is_still_offered(started, anchor, manifest(110, v109=20_000_000, v100=9_000_000))


def test_a_base_that_nobody_keeps_whole_is_no_bridge() -> None:
    newest = manifest(60, v59=20_000_000, v58=20_000_000, v50=80_000_000)
    nearly = {weights(58): SIZE - 1}
    assert choose_way(newest, facts(nearly)) == FullUpdate()
    assert choose_way(newest, facts(whole(58))) == DeltaUpdate(newest.deltas[1])


def test_a_base_that_leads_nowhere_any_more_is_not_fetched_further() -> None:
    started = manifest(60, v59=20_000_000, v50=80_000_000)
    anchor = base_of(started, started.deltas[1])
    newest = manifest(110, v109=20_000_000, v100=80_000_000)
    assert is_worth_finishing(started, anchor, newest, facts({anchor: SIZE // 2})) is False


@given(
    st.dictionaries(st.integers(0, 8), st.integers(1, SIZE - 1), max_size=4),
    st.dictionaries(st.integers(0, 9), st.integers(0, SIZE), max_size=5),
    st.one_of(st.none(), st.floats(1e3, 1e10)),
    st.one_of(st.none(), st.floats(0.1, 1e4)),
)
def test_the_way_chosen_is_possible_and_the_same_every_time(
    sizes: dict[int, int],
    here: dict[int, int],
    bytes_per_s: float | None,
    publish_s: float | None,
) -> None:
    newest = manifest(9, **{f"v{base}": size for base, size in sizes.items()})
    now = facts(
        {weights(v): n for v, n in here.items()}, bytes_per_s=bytes_per_s, publish_s=publish_s
    )
    way = choose_way(newest, now)
    assert way == choose_way(newest, now)
    match way:
        case DeltaUpdate(chosen):
            assert now.missing_bytes(base_of(newest, chosen)) == 0
        case AnchorUpdate(chosen):
            assert now.missing_bytes(base_of(newest, chosen)) > 0
        case FullUpdate():
            pass


@pytest.mark.parametrize("bytes_per_s", [None, 0.0])
def test_before_anything_was_measured_there_is_an_answer(bytes_per_s: float | None) -> None:
    newest = manifest(4, v3=20_000_000)
    assert choose_way(newest, facts(whole(3), bytes_per_s=bytes_per_s)) != FullUpdate()
