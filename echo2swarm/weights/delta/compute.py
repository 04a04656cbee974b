"""Diff, merge and patch of whole versions.

Each is a generator that yields after every block: whoever runs it in worker
threads can stop it between two blocks, and closes it, which closes its files.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np

from echo2swarm.weights.delta.blocks import apply, change_between, merged, word_type
from echo2swarm.weights.delta.content import ContentReader, ContentWriter
from echo2swarm.weights.delta.errors import BadDeltaError, WrongBaseError
from echo2swarm.weights.delta.stream import (
    BLOCK_BYTES,
    DeltaWriter,
    Header,
    read_changes,
    read_header,
)

CODEC: Final = "xor-1"
"""The name of this codec in manifests."""

Steps = Generator[None, None, None]


class TooLargeError(Exception):
    """The delta would be larger than is of use."""


def diff(
    old: Sequence[Path],
    new: Sequence[Path],
    target: Path,
    *,
    size_bytes: int,
    word_bytes: int,
    base_root: bytes,
    result_root: bytes,
    max_bytes: int,
    block_bytes: int = BLOCK_BYTES,
) -> Steps:
    """Write the delta from the files ``old`` to the files ``new``.

    Raises:
        TooLargeError: it would be longer than ``max_bytes``.
        BadDeltaError: the files are shorter than ``size_bytes`` in all.
        OSError: something can't be read or written.
    """
    header = Header(
        word_bytes=word_bytes,
        block_bytes=block_bytes,
        size_bytes=size_bytes,
        base_root=base_root,
        result_root=result_root,
    )
    # Of whole items of eight bytes; what the last block does not fill stays zero in both.
    before, after = (np.zeros(-(-block_bytes // 8), np.uint64) for _ in range(2))
    before_bytes, after_bytes = before.data.cast("B"), after.data.cast("B")
    with ExitStack() as stack:
        olds, news = (stack.enter_context(ContentReader(paths)) for paths in (old, new))
        writer = DeltaWriter(stack.enter_context(target.open("xb")), header)
        for index in range(header.num_blocks):
            length = header.block_length(index)
            num_items = -(-length // 8)
            before[num_items - 1] = after[num_items - 1] = 0
            olds.fill(before_bytes[:length])
            news.fill(after_bytes[:length])
            change = change_between(
                before[:num_items],
                after[:num_items],
                num_words=header.num_words(index),
                word_bytes=word_bytes,
            )
            writer.add(change)
            _check_size(writer, max_bytes)
            yield


def compose(first: Path, second: Path, target: Path, *, max_bytes: int) -> Steps:
    """Write the delta that is ``first`` and then ``second``.

    Costs as much as there is in them, not as there is in the weights.

    Raises:
        TooLargeError: it would be longer than ``max_bytes``.
        WrongBaseError: the second does not begin where the first ends.
        BadDeltaError: one is no delta, or they are cut into blocks differently.
        OSError: something can't be read or written.
    """
    with ExitStack() as stack:
        sources = [stack.enter_context(path.open("rb")) for path in (first, second)]
        one, two = (read_header(source) for source in sources)
        if one.result_root != two.base_root:
            raise WrongBaseError("the second delta does not begin where the first ends")
        header = Header(
            word_bytes=two.word_bytes,
            block_bytes=two.block_bytes,
            size_bytes=two.size_bytes,
            base_root=one.base_root,
            result_root=two.result_root,
        )
        if (one.word_bytes, one.block_bytes, one.size_bytes) != (
            two.word_bytes,
            two.block_bytes,
            two.size_bytes,
        ):
            raise BadDeltaError("two deltas of different shape")
        writer = DeltaWriter(stack.enter_context(target.open("xb")), header)
        changes = (
            read_changes(source, each) for source, each in zip(sources, (one, two), strict=True)
        )
        for index, (before, after) in enumerate(zip(*changes, strict=True)):
            writer.add(merged(before, after, num_words=header.num_words(index)))
            _check_size(writer, max_bytes)
            yield


def patch(
    delta: Path,
    old: Sequence[Path],
    new: Sequence[tuple[Path, int]],
    *,
    base_root: bytes,
    result_root: bytes,
    on_bytes: Callable[[memoryview], None],
) -> Steps:
    """Write the files ``new`` (paths with sizes) out of the files ``old`` and a delta.

    Args:
        delta: the delta file.
        old: the files of the base.
        new: the files to make; their folder is there, they are not.
        base_root: the payload that ``old`` is.
        result_root: the payload that ``new`` should become.
        on_bytes: shown all that is written, in order, for hashing.

    Raises:
        WrongBaseError: the delta is for another base, or leads to something else.
        BadDeltaError: the delta is malformed, or does not fit the files.
        OSError: something can't be read or written.
    """
    with ExitStack() as stack:
        source = stack.enter_context(delta.open("rb"))
        header = read_header(source)
        if header.base_root != base_root:
            raise WrongBaseError(f"it applies to payload {header.base_root.hex()[:16]}")
        if header.result_root != result_root:
            raise WrongBaseError(f"it leads to payload {header.result_root.hex()[:16]}")
        if header.size_bytes != sum(size for _, size in new):
            raise BadDeltaError(f"it is for {header.size_bytes} bytes of weights")
        reader = stack.enter_context(ContentReader(old))
        writer = stack.enter_context(ContentWriter(new))
        block = np.zeros(-(-header.block_bytes // 8), np.uint64)
        words, view = block.view(word_type(header.word_bytes)), block.data.cast("B")
        for index, change in enumerate(read_changes(source, header)):
            length = header.block_length(index)
            reader.fill(view[:length])
            apply(change, words[: header.num_words(index)])
            on_bytes(view[:length])
            writer.write(view[:length])
            yield


def _check_size(writer: DeltaWriter, max_bytes: int) -> None:
    if writer.num_bytes > max_bytes:
        raise TooLargeError(f"the delta is longer than {max_bytes} bytes")
