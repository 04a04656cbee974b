"""The trainer, on the tiny model."""

import random

import pytest
import torch

from learner.training.batching import Sample
from learner.training.messages import Start, TrainGroup
from learner.training.trainer import Trainer
from learner.training.weights import model_tensors
from learner.training.worker import open_trainer
from protocols.packed import unpack_floats, unpack_tokens
from tests.learner.training.model_inputs import (
    ASK,
    EOS,
    group,
    plain_logprobs,
    random_groups,
    rollout,
    start,
)

pytestmark = pytest.mark.model


def trainer_of(call: Start) -> Trainer:
    trainer = open_trainer(call)
    assert isinstance(trainer, Trainer)
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model_tensors(trainer._model).items()}


def silent(what: str, done: float, total: float) -> None:
    pass


def assert_unchanged(trainer: Trainer, before: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(weights(trainer), before, rtol=0, atol=0)


def largest_change(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_an_update_changes_the_weights_and_counts_a_step() -> None:
    trainer = trainer_of(start())
    before = weights(trainer)

    updated = trainer.update(0, random_groups(0, equal=(1,)), silent)

    assert updated.step == trainer.step == 1
    assert 0 < largest_change(weights(trainer), before) < 1e-3
    assert updated.metrics["num_groups"] == 4
    assert updated.metrics["num_groups_unequal"] == 3
    assert updated.metrics["is_not_finite"] == 0
    assert updated.metrics["ratio_mean"] == 1


def test_drift_is_told_by_node_and_adds_up_to_that_of_all_tokens() -> None:
    updated = trainer_of(start()).update(0, random_groups(0, equal=(1,)), silent)

    assert set(updated.drift_by_peer) == {"peer-0", "peer-1"}
    nodes = updated.drift_by_peer.values()
    num_tokens = sum(node["num_tokens"] for node in nodes)
    assert num_tokens == updated.metrics["num_tokens_trained"]
    for name in ("drift_mean", "kl_behaviour_prox"):
        mean = sum(node[name] * node["num_tokens"] for node in nodes) / num_tokens
        assert mean == pytest.approx(updated.metrics[name], rel=1e-4)
        assert len({node[name] for node in nodes}) == 2


def test_rewarded_completions_become_likelier_and_others_less_likely() -> None:
    trainer = trainer_of(start(warmup_steps=0))
    good, bad = [1, 2, 3, EOS], [3, 2, 1, EOS]
    groups = (
        group(
            0,
            [3, 1, 2, ASK],
            [rollout(good, [-1.0] * 4, reward=1.0), rollout(bad, [-1.0] * 4, reward=0.0)],
        ),
    )

    def logprob(completion: list[int]) -> float:
        with torch.no_grad():
            logits = trainer._model(torch.tensor([[3, 1, 2, ASK, *completion]])).logits[0]
        return float(sum(logits.log_softmax(-1)[3 + i, t] for i, t in enumerate(completion)))

    before = logprob(good), logprob(bad)
    trainer.update(0, groups, silent)

    assert logprob(good) > before[0]
    assert logprob(bad) < before[1]


@pytest.mark.parametrize("length_norm", ["token", "sequence", "constant"])
def test_the_update_does_not_depend_on_how_it_is_cut_into_micro_batches(length_norm: str) -> None:
    groups = random_groups(1, equal=(0,))
    once = trainer_of(start(length_norm=length_norm))
    often = trainer_of(start(length_norm=length_norm, micro_batch_tokens=8))

    metrics = once.update(0, groups, silent).metrics
    other = often.update(0, groups, silent).metrics

    assert metrics["loss"] == pytest.approx(other["loss"], rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    assert metrics["entropy"] == pytest.approx(other["entropy"], rel=1e-4)
    # Adam's first step is the sign of the gradient, so only tiny gradients may differ in effect.
    states = [trainer._optimizer.state_dict()["state"] for trainer in (once, often)]
    for one, two in zip(states[0].values(), states[1].values(), strict=True):
        torch.testing.assert_close(one["exp_avg"], two["exp_avg"], rtol=1e-3, atol=1e-8)


def test_logits_in_pieces_give_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = random_groups(2)
    whole, pieces = trainer_of(start()), trainer_of(start())

    metrics = whole.update(0, groups, silent).metrics
    monkeypatch.setattr("learner.training.gradient._MAX_LOGITS", 3 * 16)
    other = pieces.update(0, groups, silent).metrics

    assert metrics["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    assert metrics["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_the_gradient_is_that_of_the_objective_written_out() -> None:
    groups = random_groups(3, num_groups=2)
    trainer = trainer_of(start(scale_advantages=False, importance_cap=1.5, max_grad_norm=1e9))
    model = trainer_of(start())._model

    metrics = trainer.update(0, groups, silent).metrics

    # Written out, one sample at a time: -min(prox / behaviour, cap) x A x logprob, over a mean.
    loss = torch.zeros(())
    num_rollouts = sum(len(g.rollouts) for g in groups)
    for g in groups:
        mean = sum(r.reward for r in g.rollouts) / len(g.rollouts)
        prompt = unpack_tokens(g.prompt_tokens)
        for r in g.rollouts:
            sample = Sample(
                tokens=prompt + unpack_tokens(r.tokens), num_prompt=len(prompt), first=0
            )
            logprobs = plain_logprobs(model, [sample])
            behaviour = torch.tensor(unpack_floats(r.logprobs))
            weight = (logprobs.detach() - behaviour).exp().clamp(max=1.5)
            loss = loss - (weight * (r.reward - mean) * logprobs).sum() / (num_rollouts * 4)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_groups_without_variance_are_a_step_without_change() -> None:
    trainer = trainer_of(start())
    trainer.update(0, random_groups(0), silent)
    before = weights(trainer)

    updated = trainer.update(1, random_groups(1, equal=(0, 1, 2, 3)), silent)

    assert updated.step == 2
    assert updated.metrics["is_without_signal"] == 1
    assert_unchanged(trainer, before)


def test_groups_without_variance_count_in_the_average_but_not_in_the_gradient() -> None:
    groups = random_groups(4)
    equal = random_groups(5, equal=(0, 1, 2, 3))
    alone, diluted = trainer_of(start()), trainer_of(start())

    metrics = alone.update(0, groups, silent).metrics
    other = diluted.update(0, groups + equal, silent).metrics

    assert other["num_tokens_computed"] == metrics["num_tokens_computed"]
    assert other["grad_norm"] == pytest.approx(metrics["grad_norm"] / 2, rel=1e-4)


@pytest.mark.parametrize("length_norm", ["token", "sequence", "constant"])
@pytest.mark.parametrize("groups", [(), (group(0, [1, ASK], []),)])
def test_nothing_to_train_on_is_a_step_without_change(
    length_norm: str, groups: tuple[TrainGroup, ...]
) -> None:
    trainer = trainer_of(start(length_norm=length_norm))

    assert trainer.update(0, groups, silent).step == 1


def test_a_gradient_that_is_not_finite_touches_nothing() -> None:
    trainer = trainer_of(start())
    trainer.update(0, random_groups(0), silent)
    with torch.no_grad():
        trainer._model.get_parameter("model.embed_tokens.weight")[5, 0] = float("inf")
    before = weights(trainer)

    updated = trainer.update(1, random_groups(1), silent)

    assert updated.step == 2
    assert updated.metrics["is_not_finite"] == 1
    assert_unchanged(trainer, before)


BAD = {
    "a behaviour logprob is not finite": rollout([1, 2], [-1.0, float("nan")], reward=1.0),
    "2 tokens, but 1 logprobs": rollout([1, 2], [-1.0], reward=1.0),
    "the reward is nan": rollout([1, 2], [-1.0, -1.0], reward=float("nan")),
    "token 16, but the vocabulary has 16": rollout([1, 16], [-1.0, -1.0], reward=1.0),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_input_is_refused_with_its_reason_and_changes_nothing(reason: str) -> None:
    trainer = trainer_of(start())
    before = weights(trainer)
    groups = (*random_groups(0), group(9, [1, 2, 3, ASK], [BAD[reason]]))

    with pytest.raises(ValueError, match=f"group 9.*{reason}"):
        trainer.update(0, groups, silent)

    assert trainer.step == 0
    assert_unchanged(trainer, before)


def test_an_empty_prompt_is_refused() -> None:
    trainer = trainer_of(start())

    with pytest.raises(ValueError, match="group 3: the prompt is empty"):
        trainer.update(0, (group(3, [], [rollout([1], [-1.0], reward=1.0)]),), silent)


def test_an_update_from_another_step_is_refused() -> None:
    trainer = trainer_of(start())

    with pytest.raises(ValueError, match="from step 1 was asked for, but 0 are done"):
        trainer.update(1, random_groups(0), silent)


def test_the_same_input_gives_the_same_weights_bit_for_bit() -> None:
    one, two = trainer_of(start()), trainer_of(start())

    for step in range(3):
        one.update(step, random_groups(step), silent)
        two.update(step, random_groups(step), silent)

    assert_unchanged(one, weights(two))


def test_a_model_without_shared_prefixes_learns_the_same() -> None:
    shared, plain = trainer_of(start()), trainer_of(start())
    plain._policy.shares_prefixes = False

    metrics = shared.update(0, random_groups(6), silent).metrics
    other = plain.update(0, random_groups(6), silent).metrics

    assert other["num_tokens_computed"] > metrics["num_tokens_computed"]
    assert other["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-4)
    assert other["loss"] == pytest.approx(metrics["loss"], rel=1e-4)


def test_the_kl_penalty_holds_the_policy_near_the_initial_model() -> None:
    divergences = []
    for coefficient in (1e-9, 10.0):
        trainer = trainer_of(start(warmup_steps=0, learning_rate=1e-3, kl_coefficient=coefficient))
        found = [trainer.update(step, random_groups(7), silent).metrics for step in range(8)]
        divergences.append(found[-1]["kl_reference"])

    assert 0 < divergences[1] < divergences[0] / 2


def test_the_kl_penalty_pulls_on_groups_without_variance_too() -> None:
    trainer = trainer_of(start(kl_coefficient=1.0))
    trainer.update(0, random_groups(0), silent)
    before = weights(trainer)

    metrics = trainer.update(1, random_groups(1, equal=(0, 1, 2, 3)), silent).metrics

    assert metrics["num_tokens_trained"] == metrics["num_tokens"]
    assert largest_change(weights(trainer), before) > 0


def test_the_learning_rate_warms_up() -> None:
    trainer = trainer_of(start(warmup_steps=4, learning_rate=1e-3))

    rates = [
        trainer.update(step, random_groups(step), silent).metrics["learning_rate"]
        for step in range(6)
    ]

    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def sampled_groups(trainer: Trainer, rng: random.Random) -> tuple[TrainGroup, ...]:
    """Let the trainer's own model sort: 16 prompts, 8 completions each."""
    prompts = [[rng.randrange(10) for _ in range(3)] + [ASK] for _ in range(16)]
    tokens = torch.tensor(prompts).repeat_interleave(8, dim=0)
    chosen_logprobs = []
    with torch.no_grad():
        for _ in range(4):
            logprobs = trainer._model(input_ids=tokens).logits[:, -1].log_softmax(-1)
            chosen = torch.multinomial(logprobs.exp(), 1)
            chosen_logprobs.append(logprobs.gather(1, chosen))
            tokens = torch.cat([tokens, chosen], 1)
    completions = tokens[:, 4:].tolist()
    logprob_rows = torch.cat(chosen_logprobs, 1).tolist()
    groups = []
    for index, prompt in enumerate(prompts):
        rollouts = []
        for row in range(8 * index, 8 * index + 8):
            completion = completions[row]
            if EOS in completion:
                completion = completion[: completion.index(EOS) + 1]
            reward = float(completion == [*sorted(prompt[:3]), EOS])
            logprobs_of_row = logprob_rows[row][: len(completion)]
            rollouts.append(rollout(completion, logprobs_of_row, reward=reward))
        groups.append(group(index, prompt, rollouts))
    return tuple(groups)


def test_a_model_that_sorts_half_the_time_learns_to_sort() -> None:
    torch.manual_seed(0)
    rng = random.Random(0)
    trainer = trainer_of(
        start(learning_rate=3e-4, warmup_steps=0, beta2=0.95, publish_dtype="float32")
    )

    rewards = []
    for step in range(30):
        metrics = trainer.update(step, sampled_groups(trainer, rng), silent).metrics
        assert metrics["drift_max"] < 1e-3  # what sampled is what is trained
        rewards.append(metrics["reward_mean"])

    assert sum(rewards[:3]) / 3 < 0.6
    assert sum(rewards[-5:]) / 5 > 0.7


def test_what_each_node_shows_of_its_sampling_is_told() -> None:
    trainer = trainer_of(start(max_drift=0.5))
    prompt, good, bad = [3, 1, 2, ASK], [1, 2, 3, EOS], [3, 2, 1, EOS]

    def logprobs(completion: list[int]) -> list[float]:
        sample = Sample(tokens=prompt + completion, num_prompt=len(prompt), first=0)
        with torch.no_grad():
            return plain_logprobs(trainer._model, [sample]).tolist()

    rollouts = [
        rollout(answer, claims, reward=float(answer == good), peer_id=peer)
        for answer in (good, bad)
        for peer, claims in (("honest", logprobs(answer)), ("liar", [-6.0] * 4))
    ]
    sampled_by = trainer.update(0, (group(0, prompt, rollouts),), silent).sampled_by

    assert (sampled_by["honest"].num_rollouts, sampled_by["honest"].num_left_out) == (2, 0)
    assert (sampled_by["liar"].num_rollouts, sampled_by["liar"].num_left_out) == (2, 2)
    assert sampled_by["liar"].unlikely_evidence > 10 + sampled_by["honest"].unlikely_evidence


def test_a_rare_answer_that_brings_its_group_here_is_no_evidence() -> None:
    prompt, good, bad = [3, 1, 2, ASK], [1, 2, 3, EOS], [3, 2, 1, EOS]
    rollouts = [
        rollout(good, [-0.1] * 4, reward=1.0, peer_id="many"),
        rollout(good, [-0.1] * 4, reward=1.0, peer_id="many"),
        rollout(bad, [-9.0] * 4, reward=0.0, peer_id="one"),
    ]
    sampled_by = trainer_of(start()).update(0, (group(0, prompt, rollouts),), silent).sampled_by

    assert (sampled_by["one"].unlikely_evidence, sampled_by["one"].likely_evidence) == (0, 0)
    assert sampled_by["many"].unlikely_evidence != 0


def test_evidence_of_honest_sampling_is_no_more_than_chance_has_it() -> None:
    trainer = trainer_of(start(learning_rate=1e-9))
    generator = torch.Generator().manual_seed(0)
    found = []
    for step in range(20):
        groups = []
        for number in range(8):
            prompt = [*torch.randint(10, (3,), generator=generator).tolist(), ASK]
            rollouts = []
            for _ in range(4):
                answer, claims = _sampled(trainer, prompt, generator)
                reward = float(answer == [*sorted(prompt[:3]), EOS])
                rollouts.append(rollout(answer, claims, reward=reward))
            groups.append(group(number, prompt, rollouts))
        told = trainer.update(step, tuple(groups), silent).sampled_by
        found += [(told["peer"].unlikely_evidence, told["peer"].likely_evidence)] if told else []

    # Their exponentials are 1 in expectation, so their sums fall if they do anything.
    assert len(found) > 5
    assert all(sum(values) < 5 for values in zip(*found, strict=True))


def _sampled(
    trainer: Trainer, prompt: list[int], generator: torch.Generator
) -> tuple[list[int], list[float]]:
    answer: list[int] = []
    claims: list[float] = []
    while len(answer) < 4 and answer[-1:] != [EOS]:
        with torch.no_grad():
            row = trainer._model(torch.tensor([prompt + answer])).logits[0, -1].log_softmax(-1)
        answer.append(int(torch.multinomial(row.exp(), 1, generator=generator)))
        claims.append(float(row[answer[-1]]))
    return answer, claims
