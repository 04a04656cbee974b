"""Batches become smaller where memory has no room for them, and nothing is lost by it."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.engine.messages import Completion
from node.engine.transformers_decode import DecodeBatch
from node.engine.transformers_memory import MemoryLimit, is_shortage
from protocols.leases import LeasedGroup, SampleSpec
from protocols.packed import pack_floats, pack_tokens
from protocols.rollouts import FinishReason

NEW = 4


def groups_of(*sizes: tuple[int, int]) -> list[LeasedGroup]:
    """Return groups of (tokens of the prompt, samples)."""
    return [
        LeasedGroup(
            i, pack_tokens([i + 1] * length), tuple(SampleSpec(j, 100 * i + j) for j in range(num))
        )
        for i, (length, num) in enumerate(sizes)
    ]


def completion(group_id: int, index: int) -> Completion:
    return Completion(
        group_id=group_id,
        sample_index=index,
        tokens=pack_tokens([1]),
        logprobs=pack_floats([-1.0]),
        finish_reason=FinishReason.STOP,
        oldest_version=0,
        newest_version=0,
    )


class Memory:
    """Has room for some tokens, and says so as torch does."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.num_shortages = 0
        self.sizes: list[int] = []

    def attempt(self, batch: DecodeBatch) -> list[Completion]:
        num_tokens = batch.num_tokens(NEW)
        if num_tokens > self.room:
            self.num_shortages += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.sizes.append(len(batch.rows))
        for index, group_id, _ in batch.rows:
            assert batch.prompts[index][0] == group_id + 1
        return [completion(group_id, spec.index) for _, group_id, spec in batch.rows]


def sample(limit: MemoryLimit, groups: list[LeasedGroup], memory: Memory) -> set[tuple[int, int]]:
    made = [c for some in limit.sample(groups, memory.attempt, max_new_tokens=NEW) for c in some]
    keys = {(c.group_id, c.sample_index) for c in made}
    assert len(keys) == len(made), "nothing is sampled twice"
    return keys


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=6),
    room=st.integers(24, 400),
    max_rows=st.integers(1, 16),
    max_tokens=st.integers(8, 500),
)
def test_all_is_sampled_once_whatever_room_there_is(
    sizes: list[tuple[int, int]], room: int, max_rows: int, max_tokens: int
) -> None:
    limit, memory = MemoryLimit(max_rows=max_rows, max_tokens=max_tokens), Memory(room)
    groups = groups_of(*sizes)

    keys = sample(limit, groups, memory)

    assert keys == {(g.group_id, spec.index) for g in groups for spec in g.samples}
    assert max(memory.sizes) <= max_rows


def test_what_was_found_out_is_kept_to() -> None:
    told: list[int] = []
    limit = MemoryLimit(max_rows=64, max_tokens=4096, on_shortage=told.append)
    memory = Memory(100)
    groups = groups_of((6, 40))  # 400 tokens at once

    sample(limit, groups, memory)
    num_shortages = memory.num_shortages
    sample(limit, groups, memory)

    assert num_shortages == 2
    assert told == [200, 100]
    assert memory.num_shortages == num_shortages
    assert limit.max_tokens == 100


def test_after_a_while_more_is_tried_again() -> None:
    limit, memory = MemoryLimit(max_rows=64, max_tokens=400), Memory(100)
    groups = groups_of((6, 40))
    sample(limit, groups, memory)
    memory.room = 10_000
    for _ in range(60):
        sample(limit, groups, memory)

    assert limit.max_tokens == 400
    assert memory.sizes[-1] == 40


def test_a_shortage_begins_the_while_anew() -> None:
    limit, memory = MemoryLimit(max_rows=64, max_tokens=400), Memory(200)
    groups = groups_of((6, 20))  # 200 tokens
    sample(limit, groups_of((6, 40)), memory)
    for _ in range(50):
        sample(limit, groups, memory)
    memory.room = 100
    sample(limit, groups, memory)
    num_shortages = memory.num_shortages
    for _ in range(20):
        sample(limit, groups_of((6, 10)), memory)

    assert limit.max_tokens == 100
    assert memory.num_shortages == num_shortages


def test_a_single_completion_without_room_is_an_error_that_says_so() -> None:
    limit = MemoryLimit(max_rows=64, max_tokens=4096)
    with pytest.raises(MemoryError, match="out of memory with a single completion of 24 tokens"):
        sample(limit, groups_of((20, 3)), Memory(23))


def test_any_other_error_is_none_of_its_business() -> None:
    def attempt(_batch: DecodeBatch) -> list[Completion]:
        raise RuntimeError("the weights are odd")

    limit = MemoryLimit(max_rows=64, max_tokens=4096)
    with pytest.raises(RuntimeError, match="odd"):
        list(limit.sample(groups_of((2, 2)), attempt, max_new_tokens=NEW))
    assert limit.max_tokens == 4096


def _allocate_too_much() -> None:
    torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("fails", "is_one"),
    [
        (_allocate_too_much, True),
        (lambda: torch.zeros(2) @ torch.zeros(3), False),
    ],
)
def test_torchs_own_words_for_it_are_known(fails: Callable[[], object], is_one: bool) -> None:
    with pytest.raises(RuntimeError) as caught:
        fails()
    assert is_shortage(caught.value) == is_one
