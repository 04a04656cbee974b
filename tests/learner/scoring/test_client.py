"""The scorer as a real process, with verifiers that raise, hang and bring it down."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from echo2swarm.system.errors import ChildError, ConfigError
from learner.scoring.client import MAX_BATCH, ProcessScorer, open_scorer
from learner.scoring.limits import ScorerLimits
from learner.scoring.messages import CompletionToScore, ScoreFault, sha256_of_prompt
from protocols.ids import PeerId, short
from protocols.packed import pack_tokens
from tests.learner.scoring.byte_model import make_byte_model
from tests.learner.scoring.test_scorer import FUNCTION

pytestmark = pytest.mark.processes

QUICK = ScorerLimits(score_s=1.0, grace_s=4.0, reopen_waits_s=(0.0,))
BUSY = ScorerLimits(score_s=0.5, grace_s=500.0, busy_grace_s=0.5, reopen_waits_s=(0.0,))
SLOW = ScorerLimits(score_s=0.5, grace_s=4.0, reopen_waits_s=(0.0,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "scorer.log"


def completions(*texts: str) -> list[CompletionToScore]:
    """Of prompt 0, which wants "0"."""
    return [
        CompletionToScore(0, tokens_of(text), sha256_of_prompt(tokens_of("5/0"))) for text in texts
    ]


def tokens_of(text: str) -> bytes:
    return pack_tokens([BYTES.index(c) for c in text])


# Tokens are the printable bytes in the tokenizer's order: "!" is the first.
BYTES = "".join(map(chr, range(33, 127)))


async def test_prompts_and_rewards_come_from_another_process(model: Path, log_path: Path) -> None:
    async with open_scorer(FUNCTION, model, seed=5, log_path=log_path) as scorer:
        prompts = await scorer.draw(3, 2)
        rewards = await scorer.score(completions("0", "1", "pid", "torch"))

    assert scorer.opened.num_prompts is None
    assert [prompt.text for prompt in prompts.prompts] == ["5/3", "5/4"]
    assert [reward.reward for reward in rewards[:2]] == [1.0, 0.0]
    assert rewards[2].reward not in {None, os.getpid()}
    assert rewards[3].reward == 0.0, "the scorer imported torch"


@pytest.mark.parametrize(("culprit", "error"), [("die", "status 9"), ("hang", "no sign of life")])
async def test_a_completion_that_brings_the_process_down_costs_only_its_own_reward(
    model: Path, log_path: Path, culprit: str, error: str
) -> None:
    texts = ["0", "1", culprit, "raise", "0"]

    with structlog.testing.capture_logs() as events:
        async with open_scorer(FUNCTION, model, seed=5, log_path=log_path, limits=QUICK) as scorer:
            rewards = await scorer.score(completions(*texts))

    assert [reward.reward for reward in rewards] == [1.0, 0.0, None, None, 1.0]
    assert sum(event["event"] == "scorer.lost" for event in events) == 2
    assert error in rewards[2].error
    assert "no such answer" in rewards[3].error


async def test_a_batch_that_goes_on_slowly_is_not_taken_for_a_hanging_one(
    model: Path, log_path: Path
) -> None:
    # Each takes until the scorer itself stops it: in all far longer than may pass in silence.
    task, texts = FUNCTION | {"score_limit_s": SLOW.score_s}, ["slow"] * MAX_BATCH

    with structlog.testing.capture_logs() as events:
        async with open_scorer(task, model, seed=5, log_path=log_path, limits=SLOW) as scorer:
            rewards = await scorer.score(completions(*texts))

    assert events == []
    assert {reward.error for reward in rewards} == {"TimeLimitError: took longer than 0.5 s"}


async def test_a_process_that_was_killed_is_replaced_and_nothing_is_lost(
    model: Path, log_path: Path
) -> None:
    async with open_scorer(FUNCTION, model, seed=5, log_path=log_path, limits=QUICK) as scorer:
        before = await scorer.draw(0, 2)
        (first,) = await scorer.score(completions("pid"))
        assert first.reward is not None
        os.kill(int(first.reward), signal.SIGKILL)

        after = await scorer.draw(0, 2)
        second, right = await scorer.score(completions("pid", "0"))

    assert after == before
    assert second.reward != first.reward
    assert right.reward == 1.0


async def test_chats_are_rendered_without_loading_torch(model: Path, log_path: Path) -> None:
    task = FUNCTION | {"make_prompt": "tests.learner.scoring.sample_verifier:make_chat"}

    async with open_scorer(task, model, seed=5, log_path=log_path) as scorer:
        (prompt,) = (await scorer.draw(7, 1)).prompts
        asked = sha256_of_prompt(prompt.tokens)
        (torch,) = await scorer.score([CompletionToScore(7, tokens_of("torch"), asked)])

    assert prompt.text == "[user] 5/7\n[assistant]"
    assert torch.reward == 0.0


async def test_many_completions_are_scored_in_order(model: Path, log_path: Path) -> None:
    texts = [str(i % 3) for i in range(2 * MAX_BATCH + 5)]

    async with open_scorer(FUNCTION, model, seed=5, log_path=log_path) as scorer:
        rewards = await scorer.score(completions(*texts))

    assert [reward.text for reward in rewards] == texts
    assert [reward.reward for reward in rewards] == [float(text == "0") for text in texts]


async def test_several_tasks_share_the_scorer(model: Path, log_path: Path) -> None:
    results: dict[int, list[float | None]] = {}

    async def score(i: int) -> None:
        rewards = await scorer.score(completions("0", str(i)))
        results[i] = [reward.reward for reward in rewards]

    async with (
        open_scorer(FUNCTION, model, seed=5, log_path=log_path) as scorer,
        trio.open_nursery() as nursery,
    ):
        for i in range(1, 6):
            nursery.start_soon(score, i)

    assert results == {i: [1.0, 0.0] for i in range(1, 6)}


async def test_a_cancelled_caller_does_not_disturb_the_next(model: Path, log_path: Path) -> None:
    async with open_scorer(FUNCTION, model, seed=5, log_path=log_path) as scorer:
        with trio.move_on_after(0.01):
            await scorer.score(completions("slow"))

        assert [r.reward for r in await scorer.score(completions("0"))] == [1.0]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"kind": "arithmetik"}, r'^task\.kind: no "arithmetik"; did you mean "arithmetic"\?$'),
        ({"kind": "jsonl", "path": "/nowhere"}, r"^task\.path: can't read /nowhere: "),
    ],
)
async def test_a_task_that_does_not_fit_is_a_config_error_with_its_own_message(
    model: Path, log_path: Path, task: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        async with open_scorer(task, model, seed=5, log_path=log_path):
            pytest.fail("it opened")


async def test_a_scorer_that_can_not_be_started_anew_ends_the_context(
    tmp_path: Path, log_path: Path
) -> None:
    model = make_byte_model(tmp_path / "model")

    with pytest.RaisesGroup(pytest.RaisesExc(ChildError, match=r"no tokenizer\.json")):
        async with open_scorer(FUNCTION, model, seed=5, log_path=log_path, limits=QUICK) as scorer:
            (model / "tokenizer.json").unlink()
            await scorer.score(completions("die"))


async def test_a_scorer_that_is_started_anew_on_changed_data_is_refused(
    model: Path, tmp_path: Path, log_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "0", "wanted": 0}\n' * 3)
    items = {"kind": "function", "score": FUNCTION["score"], "path": str(data)}
    task = items | {"held_out_share": 0}

    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match=r"^task\.path: \S+rows\.jsonl has changed \(SHA-256 ")
    ):
        async with open_scorer(task, model, seed=5, log_path=log_path, limits=QUICK) as scorer:
            (prompt,) = (await scorer.draw(0, 1)).prompts
            data.write_text('{"prompt": "1", "wanted": 1}\n' + data.read_text())
            asked = sha256_of_prompt(prompt.tokens)
            await scorer.score([CompletionToScore(0, tokens_of("die"), asked)])


async def test_no_process_and_no_task_is_left_behind(model: Path, log_path: Path) -> None:
    before = trio.lowlevel.current_statistics().tasks_living

    async with open_scorer(FUNCTION, model, seed=5, log_path=log_path) as scorer:
        (reward,) = await scorer.score(completions("pid"))

    assert reward.reward is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(reward.reward), 0)
    assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a_completion_that_computes_for_too_long_is_given_up_at_once(
    model: Path, log_path: Path
) -> None:
    with structlog.testing.capture_logs() as events:
        async with open_scorer(FUNCTION, model, seed=5, log_path=log_path, limits=BUSY) as scorer:
            rewards = await scorer.score(completions("0", "spin", "0"))

    assert [reward.reward for reward in rewards] == [1.0, None, 1.0]
    assert rewards[1].fault is ScoreFault.TIMEOUT
    assert sum(event["event"] == "scorer.lost" for event in events) == 1


async def both_up(scorer: ProcessScorer) -> None:
    """Return when two processes score."""
    pids: set[float | None] = set()

    async def ask() -> None:
        (reward,) = await scorer.score(completions("pid"))
        pids.add(reward.reward)

    while len(pids) < 2:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)


async def test_nobody_waits_behind_a_node_whose_completions_hang(
    model: Path, log_path: Path
) -> None:
    # Of a hanging node's 64 completions, each would take the whole limit.
    order: list[str] = []
    all_hung = trio.Event()
    task = FUNCTION | {"score_limit_s": 2.0}

    async def hang(owner: str) -> None:
        rewards = await scorer.score(completions(*["slow"] * 64), owner=owner)
        faults = {reward.fault for reward in rewards}
        assert faults == {ScoreFault.TIMEOUT, ScoreFault.WAITING}
        assert "longer than 2 s to score: it waits" in rewards[-1].error
        order.append(owner)
        if len(order) == 3:
            all_hung.set()

    with structlog.testing.capture_logs() as events:
        async with (
            open_scorer(task, model, seed=5, log_path=log_path, num_processes=2) as scorer,
            trio.open_nursery() as nursery,
        ):
            await both_up(scorer)
            await scorer.score(completions(*["0"] * 16), owner="honest")
            nursery.start_soon(hang, "hostile-1")
            nursery.start_soon(hang, "hostile-2")
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                rewards = await scorer.score(completions(*["0"] * 16), owner="honest")
                assert {reward.reward for reward in rewards} == {1.0}
            order.append("honest")

            await all_hung.wait()
            assert scorer.wait_of("honest") is None
            assert scorer.wait_of("hostile-1") is not None
            again = await scorer.score(completions("0"), owner="hostile-1")

    assert order[0] == "honest"
    assert again[0].fault is ScoreFault.WAITING
    told = [event for event in events if event["event"] == "node.slow_to_score"]
    assert {event["peer"] for event in told} == {
        short(PeerId("hostile-1")),
        short(PeerId("hostile-2")),
    }


async def test_while_one_process_hangs_others_go_on(model: Path, log_path: Path) -> None:
    finished: list[str] = []

    async def score(text: str) -> None:
        await scorer.score(completions(text))
        finished.append(text)

    async with (
        open_scorer(
            FUNCTION, model, seed=5, log_path=log_path, limits=QUICK, num_processes=2
        ) as scorer,
        trio.open_nursery() as nursery,
    ):
        await both_up(scorer)
        nursery.start_soon(score, "spin")
        await trio.lowlevel.checkpoint()
        await score("0")

    assert finished == ["0", "spin"]


async def test_a_prompt_that_brings_the_process_down_is_left_out(
    model: Path, log_path: Path
) -> None:
    task = FUNCTION | {"make_prompt": "tests.learner.scoring.sample_verifier:make_most_prompts"}

    with structlog.testing.capture_logs() as events:
        async with open_scorer(task, model, seed=5, log_path=log_path, limits=QUICK) as scorer:
            drawn = await scorer.draw(5, 8)

    assert [prompt.index for prompt in drawn.prompts] == [5, 6, 8, 10, 11, 12]
    assert [(each.index, "status 9" in each.error) for each in drawn.skipped] == [
        (7, False),
        (9, True),
    ]
    assert events[0]["next"] == "trying no prompts out"


async def test_a_task_most_prompts_of_which_fail_is_refused_when_it_is_opened(
    model: Path, log_path: Path
) -> None:
    task = FUNCTION | {"make_prompt": "tests.learner.scoring.sample_verifier:make_no_prompt"}

    with pytest.raises(ConfigError, match=r"^32 of 32 prompts tried out can't be made"):
        async with open_scorer(task, model, seed=5, log_path=log_path):
            pytest.fail("it opened")


async def test_prompts_that_can_not_be_made_are_told_when_the_task_is_opened(
    model: Path, log_path: Path
) -> None:
    task = FUNCTION | {"make_prompt": "tests.learner.scoring.sample_verifier:make_some_prompts"}

    with structlog.testing.capture_logs() as events:
        async with open_scorer(task, model, seed=5, log_path=log_path) as scorer:
            assert scorer.opened.num_skipped == 2

    (told,) = [event for event in events if event["event"] == "prompts.skipped"]
    assert (told["count"], told["of"]) == (2, 32)
    assert "no item 7" in told["which"][1]
