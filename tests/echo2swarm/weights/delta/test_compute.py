"""Diff, merge and patch of whole versions."""

import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.weights.delta.compute import TooLargeError, diff
from echo2swarm.weights.delta.errors import BadDeltaError, WrongBaseError
from tests.echo2swarm.weights.delta.made import (
    BASE,
    BLOCK_BYTES,
    LAST,
    NEXT,
    apply_delta,
    changed,
    cut,
    make_delta,
    merge_deltas,
    random_bytes,
    write,
)

SIZES = st.one_of(
    st.integers(1, 40), st.integers(BLOCK_BYTES - 9, BLOCK_BYTES + 9), st.integers(1, 20_000)
)
SHARES = st.sampled_from([0.0, 0.001, 0.05, 0.5])


@given(SIZES, SHARES, st.sampled_from([2, 4]), st.lists(st.integers(0, 20_000), max_size=3))
def test_base_and_delta_make_the_new_files_whatever_their_sizes(
    size: int, share: float, word_bytes: int, at: list[int]
) -> None:
    old = random_bytes(size, seed=size)
    new = changed(old, share=share, word_bytes=word_bytes)
    with TemporaryDirectory() as name:
        folder = Path(name)
        olds = write(folder / "old", cut(old, at=at))
        news = write(folder / "new", cut(new, at=at))
        delta = make_delta(folder / "delta", olds, news, word_bytes=word_bytes)
        assert apply_delta(folder / "made", delta, olds) == new


@given(SIZES, SHARES, SHARES)
def test_merged_deltas_lead_over_both_steps(size: int, first: float, second: float) -> None:
    datas = [random_bytes(size, seed=size)]
    datas.append(changed(datas[0], share=first, seed=1))
    datas.append(changed(datas[1], share=second, seed=2))
    with TemporaryDirectory() as name:
        folder = Path(name)
        a, b, c = (write(folder / str(n), [data]) for n, data in enumerate(datas))
        one = make_delta(folder / "one", a, b)
        two = make_delta(folder / "two", b, c, base_root=NEXT, result_root=LAST)
        both = merge_deltas(folder / "both", one, two)
        direct = make_delta(folder / "direct", a, c, result_root=LAST)
        assert apply_delta(folder / "made", both, a, result_root=LAST) == datas[2]
        assert both.read_bytes() == direct.read_bytes()


def test_a_delta_of_one_changed_word_in_a_hundred_is_small(tmp_path: Path) -> None:
    old = random_bytes(400_000)
    olds = write(tmp_path / "old", [old])
    news = write(tmp_path / "new", [changed(old, share=0.01)])
    delta = make_delta(tmp_path / "delta", olds, news, block_bytes=1 << 20)
    assert delta.stat().st_size < 0.015 * len(old)


@pytest.mark.parametrize("roots", [(NEXT, NEXT), (BASE, LAST)], ids=["base", "result"])
def test_a_delta_is_never_applied_to_another_base_or_taken_for_another_result(
    tmp_path: Path, roots: tuple[bytes, bytes]
) -> None:
    olds = write(tmp_path / "old", [bytes(5000)])
    delta = make_delta(tmp_path / "delta", olds, write(tmp_path / "new", [bytes(5000)]))
    with pytest.raises(WrongBaseError):
        apply_delta(tmp_path / "made", delta, olds, base_root=roots[0], result_root=roots[1])
    assert list((tmp_path / "made").iterdir()) == []


def test_deltas_that_do_not_follow_on_each_other_are_not_merged(tmp_path: Path) -> None:
    olds = write(tmp_path / "old", [bytes(5000)])
    news = write(tmp_path / "new", [bytes(5000)])
    one = make_delta(tmp_path / "one", olds, news)
    for name, block_bytes, root, error in [
        ("astray", BLOCK_BYTES, BASE, WrongBaseError),
        ("other", 2 * BLOCK_BYTES, NEXT, BadDeltaError),
    ]:
        two = make_delta(
            tmp_path / name, olds, news, base_root=root, result_root=LAST, block_bytes=block_bytes
        )
        with pytest.raises(error):
            merge_deltas(tmp_path / f"{name}-both", one, two)


def test_a_delta_that_gets_too_large_is_given_up(tmp_path: Path) -> None:
    olds = write(tmp_path / "old", [random_bytes(50_000, seed=1)])
    news = write(tmp_path / "new", [random_bytes(50_000, seed=2)])
    with pytest.raises(TooLargeError):
        make_delta(tmp_path / "delta", olds, news, max_bytes=30_000)


@given(st.data())
def test_a_delta_cut_short_or_with_more_behind_it_is_refused(data: st.DataObject) -> None:
    old = random_bytes(9_000)
    with TemporaryDirectory() as name:
        folder = Path(name)
        olds = write(folder / "old", [old])
        news = write(folder / "new", [changed(old, share=0.01)])
        delta = make_delta(folder / "delta", olds, news)
        whole = delta.read_bytes()
        delta.write_bytes(data.draw(st.integers(0, len(whole) - 1).map(lambda n: whole[:n])))
        with pytest.raises(BadDeltaError, match="too early"):
            apply_delta(folder / "made", delta, olds)
        delta.write_bytes(whole + b"x")
        with pytest.raises(BadDeltaError, match="follows"):
            apply_delta(folder / "again", delta, olds)


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (0, b"X", "does not begin"),
        (8, b"\3", "words of 3"),
        (12, b"\0\0\0\1", "blocks of"),
        (12, b"\4\x10\0\0", "blocks of"),
        (16, b"\xff", "bytes of weights"),
    ],
)
def test_a_header_out_of_bounds_is_refused(
    tmp_path: Path, offset: int, value: bytes, why: str
) -> None:
    olds = write(tmp_path / "old", [bytes(5000)])
    delta = make_delta(tmp_path / "delta", olds, write(tmp_path / "new", [bytes(5000)]))
    data = bytearray(delta.read_bytes())
    data[offset : offset + len(value)] = value
    delta.write_bytes(data)
    with pytest.raises(BadDeltaError, match=why):
        apply_delta(tmp_path / "made", delta, olds)


def test_a_base_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    olds = write(tmp_path / "old", [bytes(5000), bytes(5000)])
    delta = make_delta(tmp_path / "delta", olds, write(tmp_path / "new", [bytes(10_000)]))
    files = [(tmp_path / "made" / path.name, 5000) for path in olds]
    (tmp_path / "made").mkdir()
    olds[1].write_bytes(bytes(4000))
    from echo2swarm.weights.delta.compute import patch  # noqa: PLC0415

    with pytest.raises(BadDeltaError, match="shorter"):
        for _ in patch(
            delta, olds, files, base_root=BASE, result_root=NEXT, on_bytes=lambda _: None
        ):
            pass


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (2, 16):
        folder = tmp_path / str(megabytes)
        folder.mkdir()
        old = random_bytes(megabytes << 20)
        olds = write(folder / "old", [old])
        news = write(folder / "new", [changed(old, share=0.002)])
        del old
        tracemalloc.start()
        delta = make_delta(folder / "delta", olds, news, block_bytes=1 << 19)
        for _ in diff(
            olds,
            news,
            folder / "again",
            size_bytes=megabytes << 20,
            word_bytes=2,
            base_root=NEXT,
            result_root=LAST,
            max_bytes=1 << 30,
            block_bytes=1 << 19,
        ):
            pass
        merge_deltas(folder / "both", delta, folder / "again")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0] < 8 << 20


def test_stopping_half_way_closes_every_file(tmp_path: Path) -> None:
    olds = write(tmp_path / "old", [bytes(50_000)])
    work = diff(
        olds,
        olds,
        tmp_path / "delta",
        size_bytes=50_000,
        word_bytes=2,
        base_root=BASE,
        result_root=NEXT,
        max_bytes=50_000,
        block_bytes=BLOCK_BYTES,
    )
    next(work)
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    work.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open - 3
