"""From samples to what goes through the model: each distinct prefix once.

The completions of a group have their prompt in common, often their first tokens
too, and few-shot prompts share their examples. All samples that land in one row
are laid out as the prefix tree of their tokens, in depth-first order. A token
then sees its ancestors, which are exactly the tokens before it in its sample::

    samples         row             parent sees     end
    A B C x         A B C x D y     A B C           A:6 B:6 C:4 x:4 D:6 y:6
    A B D y
                    position 0 1 2 3 2 3

``end`` is where a token's subtree ends: token i sees token j iff ``j <= i < end[j]``.
The result is the same as with one row per sample, for a fraction of the tokens.

Letters in names are shapes: S samples, N completion tokens of all samples, one
after the other; in a micro-batch: B rows, T tokens per row, P distinct positions
whose next-token distribution is needed, M completion tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_MIN_FILL: Final = 0.75
"""Rows shorter than this share of the longest are not padded to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSample:
    """One prompt with one completion."""

    tokens: Sequence[int]
    num_prompt: int
    """How many of ``tokens`` are the prompt; at least 1."""
    first: int
    """Index in N of its first completion token."""

    @property
    def num_completion(self) -> int:
        """Tokens to train on."""
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass takes."""

    tokens_BT: Ints
    positions_BT: Ints
    ends_BT: Ints
    """Padding sees, and is seen by, nothing but itself."""
    lengths_B: Ints
    source_P: Ints
    """Indices into the flattened B x T of the positions that predict something."""
    source_M: Ints
    """Which of P predicts the token; ascending."""
    target_M: Ints
    """The token's id."""
    index_M: Ints
    """Index in N of the token."""

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model, padding included."""
        return int(self.tokens_BT.size)


@dataclass(slots=True)
class _Row:
    """A prefix tree under construction."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """Where the tokens of the newest sample lie, all but its last."""
    newest: Sequence[int] = ()
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def add(self, sample: PackedSample, num_shared: int) -> None:
        size = len(self.tokens)
        # The last token predicts nothing that is asked for: it need not go through the model.
        new = sample.tokens[num_shared:-1]
        for node in self.path[num_shared:]:
            self.ends[node] = size
        self.path[num_shared:] = range(size, size + len(new))
        self.tokens.extend(new)
        self.positions.extend(range(num_shared, num_shared + len(new)))
        self.ends.extend([-1] * len(new))
        self.sources.extend(self.path[sample.num_prompt - 1 :])
        self.targets.extend(sample.tokens[sample.num_prompt :])
        self.indices.extend(range(sample.first, sample.first + sample.num_completion))
        self.newest = sample.tokens

    def close(self) -> None:
        for node in self.path:
            self.ends[node] = len(self.tokens)


def make_micro_batches(
    samples: Sequence[PackedSample], *, max_tokens: int, hidden_size: int, share_prefixes: bool
) -> list[MicroBatch]:
    """Lay out ``samples`` in micro-batches.

    Args:
        samples: those with at least one completion token each.
        max_tokens: most tokens in a micro-batch; only a single sample may have more.
        hidden_size: of the model; decides what sharing a row costs and saves.
        share_prefixes: if not, each row is one sample, for models that take no mask of ours.
    """
    rows: list[_Row] = []
    # In this order, what a sample shares with a row it shares with the row's newest sample.
    for sample in sorted(samples, key=lambda sample: list(sample.tokens)):
        row = rows[-1] if rows and share_prefixes else None
        num_shared = _num_shared(row.newest, sample.tokens) if row else 0
        if row is None or not _is_worth_joining(
            len(row.tokens), len(sample.tokens) - 1, num_shared, max_tokens, hidden_size
        ):
            row, num_shared = _Row(), 0
            rows.append(row)
        row.add(sample, num_shared)
    for row in rows:
        row.close()
    rows.sort(key=lambda row: len(row.tokens), reverse=True)
    return [_micro_batch(part) for part in _parts(rows, max_tokens)]


def _num_shared(before: Sequence[int], after: Sequence[int]) -> int:
    """Return how many leading tokens both have in the tree, where neither's last one is."""
    limit = min(len(before), len(after)) - 1
    for index in range(limit):
        if before[index] != after[index]:
            return index
    return limit


def _is_worth_joining(
    row_size: int, sample_size: int, num_shared: int, max_tokens: int, hidden_size: int
) -> bool:
    """Whether a row and a sample cost less together than apart.

    In units of 4 x hidden_size operations per layer, a token costs about 6 x hidden_size in
    matrices, and a row of n tokens n x n in attention, masked or not.
    """
    num_new = sample_size - num_shared
    if row_size + num_new > max_tokens:
        return False
    joined = 6 * hidden_size * num_new + (row_size + num_new) ** 2 - row_size**2
    apart = 6 * hidden_size * sample_size + sample_size**2
    return joined < apart


def _parts(rows: Sequence[_Row], max_tokens: int) -> list[list[_Row]]:
    """Cut ``rows``, longest first, into what fits into one micro-batch without much padding."""
    parts: list[list[_Row]] = []
    for row in rows:
        if parts:
            longest = len(parts[-1][0].tokens)
            fits = (len(parts[-1]) + 1) * longest <= max_tokens
            if fits and len(row.tokens) >= _MIN_FILL * longest:
                parts[-1].append(row)
                continue
        parts.append([row])
    return parts


def _micro_batch(rows: Sequence[_Row]) -> MicroBatch:
    num_rows, width = len(rows), len(rows[0].tokens)
    tokens = np.zeros((num_rows, width), np.int64)
    positions = np.zeros((num_rows, width), np.int64)
    ends = np.tile(np.arange(1, width + 1), (num_rows, 1))
    sources: list[Ints] = []
    for index, row in enumerate(rows):
        size = len(row.tokens)
        tokens[index, :size] = row.tokens
        positions[index, :size] = row.positions
        ends[index, :size] = row.ends
        sources.append(np.asarray(row.sources, np.int64) + index * width)
    source_P, source_M = np.unique(np.concatenate(sources), return_inverse=True)
    order = np.argsort(source_M, kind="stable")
    targets = np.concatenate([np.asarray(row.targets, np.int64) for row in rows])
    indices = np.concatenate([np.asarray(row.indices, np.int64) for row in rows])
    return MicroBatch(
        tokens_BT=tokens,
        positions_BT=positions,
        ends_BT=ends.astype(np.int64),
        lengths_B=np.asarray([len(row.tokens) for row in rows], np.int64),
        source_P=source_P,
        source_M=source_M[order],
        target_M=targets[order],
        index_M=indices[order],
    )
