"""Long prompts go to fast nodes, and none waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pacing_swarm import SimPrompt
from echo2swarm.scheduling.leases.prompt_queue import MAX_PASSED, WINDOW, PromptQueue


def queue(*num_tokens: int) -> PromptQueue:
    made = PromptQueue()
    made.extend(SimPrompt(i, bytes(4 * num)) for i, num in enumerate(num_tokens))
    return made


def take(prompts: PromptQueue, rank: float | None) -> int:
    prompt = prompts.choose(rank)
    assert prompt is not None
    prompts.remove(prompt)
    return prompt.index


def test_prompts_come_in_their_order_where_nothing_speaks_for_another() -> None:
    prompts = queue(5, 1, 9)

    assert [take(prompts, None) for _ in range(3)] == [0, 1, 2]
    assert prompts.choose(None) is None


def test_the_fastest_node_gets_the_longest_prompt_and_the_slowest_the_shortest() -> None:
    prompts = queue(5, 1, 9, 3)

    assert (take(prompts, 1.0), take(prompts, 0.0)) == (2, 1)


def test_of_equally_long_prompts_the_first_comes_first() -> None:
    prompts = queue(4, 4, 4)

    assert [take(prompts, rank) for rank in (1.0, 0.0, 0.5)] == [0, 1, 2]


@given(
    lengths=st.lists(st.integers(1, 50), min_size=200, max_size=300),
    ranks=st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, None]), min_size=300, max_size=300),
)
def test_every_prompt_is_taken_once_and_none_is_passed_too_often(
    lengths: list[int], ranks: list[float | None]
) -> None:
    prompts = queue(*lengths)
    taken = [take(prompts, rank) for _, rank in zip(lengths, ranks, strict=False)]

    assert sorted(taken) == list(range(len(lengths)))
    assert len(prompts) == 0
    # At most a window is before it, and each of those goes after MAX_PASSED others at most.
    assert all(at - index <= WINDOW * (MAX_PASSED + 1) for at, index in enumerate(taken))
    assert all(index - at < WINDOW for at, index in enumerate(taken))


def test_a_prompt_that_suits_nobody_is_next_in_the_end() -> None:
    prompts = queue(5, *[1, 9] * 100)
    taken = [take(prompts, rank) for rank in (0.0, 1.0) * 40]

    assert taken.index(0) == MAX_PASSED
