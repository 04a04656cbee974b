"""Faults that trainers elsewhere had, each as a test of its whole kind."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.config import TrainerConfig
from learner.trainer.batch import make_batch
from learner.trainer.messages import TrainGroup
from learner.trainer.prefix_packing import PackedSample, make_micro_batches
from learner.trainer.trainer import PolicyTrainer
from learner.trainer.worker import load_trainer
from tests.learner.trainer.model_inputs import (
    ASK,
    EOS,
    group,
    plain_logprobs,
    random_groups,
    rollout,
    start,
)

pytestmark = pytest.mark.model
PROMPT = [3, 1, 2, ASK]


def trainer_of(**keys: object) -> PolicyTrainer:
    trainer = load_trainer(start(**keys))  # type: ignore[arg-type]
    assert isinstance(trainer, PolicyTrainer)
    return trainer


def silent(what: str, done: float, total: float) -> None:
    pass


def logprobs_of(trainer: PolicyTrainer, completion: list[int]) -> list[float]:
    sample = PackedSample(tokens=PROMPT + completion, num_prompt=len(PROMPT), first=0)
    with torch.no_grad():
        found: list[float] = plain_logprobs(trainer._model, [sample]).tolist()
    return found


def pair(trainer: PolicyTrainer, good: list[int], bad: list[int]) -> TrainGroup:
    """A group as it would have been sampled with the trainer's weights."""
    rollouts = [
        rollout(completion, logprobs_of(trainer, completion), reward=reward)
        for completion, reward in ((good, 1.0), (bad, 0.0))
    ]
    return group(0, PROMPT, rollouts)


@pytest.mark.parametrize("completion", [[EOS], [1, EOS], [EOS, EOS], [1, EOS, 2], [1, 2, 3]])
def test_masks_come_from_lengths_so_every_sampled_token_counts_eos_and_padding_ids_too(
    completion: list[int],
) -> None:
    trainer = trainer_of(publish_dtype="float32")
    groups = (pair(trainer, completion, [9, 9, 9, 9]),)

    metrics = trainer.update(0, groups, silent).metrics

    assert metrics["num_tokens_trained"] == len(completion) + 4
    assert metrics["drift_max"] < 1e-4  # each logprob is compared with that of its own token


def test_the_end_of_a_good_answer_becomes_likelier() -> None:
    trainer = trainer_of(warmup_steps=0)
    before = logprobs_of(trainer, [1, 2, 3, EOS])[-1]
    long, short = [1, 2, 3, 4], [1, 2, 3, EOS]

    trainer.update(0, (pair(trainer, short, long),), silent)

    assert logprobs_of(trainer, short)[-1] > before


def test_a_token_that_nobody_sampled_weighs_what_it_is_likely_and_shows_as_drift() -> None:
    """An end that an engine appends with a logprob of 0, as if it had been certain."""
    trainer = trainer_of(publish_dtype="float32")
    good, bad = [1, 2, 3, 7], [1, 2, 3, 8]
    logprobs = logprobs_of(trainer, good)
    forged = rollout(good, [*logprobs[:-1], 0.0], reward=1.0)
    other = rollout(bad, logprobs_of(trainer, bad), reward=0.0)

    metrics = trainer.update(0, (group(0, PROMPT, [forged, other]),), silent).metrics

    assert metrics["importance_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["drift_max"] == pytest.approx(-logprobs[-1], rel=1e-3)


def test_staleness_is_counted_from_each_completions_own_version() -> None:
    trainer = trainer_of()
    for step in range(3):
        trainer.update(step, random_groups(step, num_groups=1), silent)
    (made,) = random_groups(9, num_groups=1)
    versions = (3, 3, 1, 0)
    rollouts = tuple(
        msgspec.structs.replace(r, version=v) for r, v in zip(made.rollouts, versions, strict=True)
    )

    updated = trainer.update(3, (msgspec.structs.replace(made, rollouts=rollouts),), silent)

    counts = {lag: of_it["num_samples"] for lag, of_it in updated.by_staleness.items()}
    assert counts == {0: 2, 2: 1, 3: 1}
    sizes = {lag: of_it["num_tokens"] for lag, of_it in updated.by_staleness.items()}
    assert sum(sizes.values()) == updated.metrics["num_tokens_trained"]
    assert sizes[3] == len(rollouts[3].tokens) // 4


def test_a_version_that_does_not_exist_yet_is_refused() -> None:
    trainer = trainer_of()
    (made,) = random_groups(0, num_groups=1)
    late = tuple(msgspec.structs.replace(r, version=1) for r in made.rollouts)

    with pytest.raises(ValueError, match="it is of version 1, but 0 updates are done"):
        trainer.update(0, (msgspec.structs.replace(made, rollouts=late),), silent)

    assert trainer.step == 0


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=4), max_size=5),
    st.integers(1, 8),
    st.sampled_from(["token", "sequence", "constant"]),
)
def test_whatever_is_left_after_filtering_is_a_whole_batch(
    rewards: list[list[float]], minibatches: int, norm: str
) -> None:
    groups = [
        group(number, PROMPT, [rollout([1, EOS], [-1.0, -1.0], reward=r) for r in each])
        for number, each in enumerate(rewards)
    ]
    keys = {"minibatches": minibatches, "length_norm": norm}
    table = msgspec.convert(keys, TrainerConfig)

    batch = make_batch(groups, table, step=0, vocab_size=16, max_new_tokens=4)

    unequal = [each for each in rewards if len(set(each)) > 1]
    assert len(batch.samples) == sum(map(len, unequal))
    assert batch.metrics["num_groups_unequal"] == len(unequal)
    assert all(0 <= part < batch.num_minibatches for part in batch.minibatch)
    assert len(batch.peers) == len(batch.staleness) == len(batch.minibatch) == len(batch.samples)
    assert (batch.weights_N > 0).all()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(2, 40))
def test_only_a_completion_that_is_longer_by_itself_exceeds_the_budget(
    lengths: list[int], max_tokens: int
) -> None:
    samples, first = [], 0
    for number, length in enumerate(lengths):
        tokens = [number % 16] + [(number + at) % 16 for at in range(length)]
        samples.append(PackedSample(tokens=tokens, num_prompt=1, first=first))
        first += length

    made = make_micro_batches(samples, max_tokens=max_tokens, hidden_size=64, share_prefixes=True)

    for micro in made:
        if micro.num_tokens > max_tokens:
            assert micro.tokens_BT.shape[0] == 1
            assert micro.num_tokens <= max(lengths)
            assert len(set(micro.source_M.tolist())) == len(micro.index_M)  # of one sample
    assert sorted(index for micro in made for index in micro.index_M.tolist()) == list(range(first))
