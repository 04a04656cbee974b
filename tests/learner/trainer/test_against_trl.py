"""The loss and its gradient against those of TRL's GRPOTrainer, on the same tensors.

Its own tensors: prompts padded on the left, completions on the right, with the EOS token for
padding. TRL's "sequence" level of the policy ratio is the geometric mean here.
"""

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from learner.config import TrainerConfig
from learner.config.objective import objective_of
from learner.trainer.batch import make_batch
from learner.trainer.gradient import add_gradient
from learner.trainer.messages import TrainGroup
from learner.trainer.policy import Policy, load_model
from learner.trainer.prefix_packing import PackedSample, make_micro_batches
from learner.trainer.tokens import Tokens
from protocols.packed import unpack_tokens
from tests.learner.trainer.model_inputs import ASK, EOS, group, plain_logprobs, rollout
from tests.tiny_model import TINY_MODEL_DIR

pytestmark = pytest.mark.model

MAX_NEW_TOKENS = 6
CAP = 1.3
NORM_OF = {"grpo": "sequence", "bnpo": "token", "dapo": "token", "dr_grpo": "constant"}
LEVEL_OF = {"token": "token", "sequence": "geometric"}
GIVEN = ("old", "behaviour", "reference")


@pytest.fixture(scope="module")
def trl_trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """TRL's trainer with the tiny model; its import takes ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets = pytest.importorskip("datasets")
        trl = pytest.importorskip("trl")
        transformers = pytest.importorskip("transformers")
        args = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=MAX_NEW_TOKENS,
            steps_per_generation=1,
            beta=0.1,
            epsilon=0.2,
            epsilon_high=0.28,
        )
        trainer = trl.GRPOTrainer(
            model=load_model(TINY_MODEL_DIR, device=torch.device("cpu")),
            args=args,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=datasets.Dataset.from_list([{"prompt": "312="}] * 8),
            processing_class=transformers.AutoTokenizer.from_pretrained(TINY_MODEL_DIR),
        )
        trainer.model.eval()
        yield trainer


@dataclass(frozen=True)
class Case:
    """Groups, and log-probabilities that are made up for the policies other than the trained."""

    groups: tuple[TrainGroup, ...]
    given: dict[str, list[list[float]]]
    """One list per completion."""


@cache
def make_case(seed: int) -> Case:
    rng = random.Random(seed)
    model = load_model(TINY_MODEL_DIR, device=torch.device("cpu"))
    groups = []
    given: dict[str, list[list[float]]] = {name: [] for name in GIVEN}
    for group_id in range(3):
        prompt = [*(rng.randrange(10) for _ in range(rng.randint(2, 5))), ASK]
        rollouts = []
        for index in range(4):
            length = rng.randint(1, MAX_NEW_TOKENS)
            completion = [rng.randrange(10) for _ in range(length)]
            if index < 2:
                completion[-1] = EOS
            sample = PackedSample(tokens=prompt + completion, num_prompt=len(prompt), first=0)
            with torch.no_grad():
                logprobs = plain_logprobs(model, [sample]).tolist()
            for name in GIVEN:
                # Ratios within the clip, and on either side of it.
                given[name].append([logprob + rng.uniform(-0.6, 0.6) for logprob in logprobs])
            reward = 1.0 if group_id == 2 else float(index % 2)
            rollouts.append(rollout(completion, given["behaviour"][-1], reward=reward))
        groups.append(group(group_id, prompt, rollouts))
    return Case(tuple(groups), given)


def padded(rows: list[list[float]], *, value: float = 0.0, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    fills = [[value] * (width - len(row)) for row in rows]
    return torch.tensor([f + r if left else r + f for f, r in zip(fills, rows, strict=True)])


def trl_inputs(case: Case, batch_advantages: list[float], level: str | None) -> dict[str, Any]:
    prompts, completions = [], []
    for g in case.groups:
        for r in g.rollouts:
            prompts.append([float(token) for token in unpack_tokens(g.prompt_tokens)])
            completions.append([float(token) for token in unpack_tokens(r.tokens)])
    mask = padded([[1.0] * len(row) for row in completions]).long()
    old, behaviour = padded(case.given["old"]), padded(case.given["behaviour"])
    inputs = {
        "prompt_ids": padded(prompts, value=EOS, left=True).long(),
        "prompt_mask": padded([[1.0] * len(row) for row in prompts], left=True).long(),
        "completion_ids": padded(completions, value=EOS).long(),
        "completion_mask": mask,
        "advantages": torch.tensor(batch_advantages),
        "old_per_token_logps": old,
        "ref_per_token_logps": padded(case.given["reference"]),
        "num_items_in_batch": mask.sum().float(),
    }
    if level is not None:
        # As in its _generate_and_score_completions().
        difference = (old - behaviour) * mask
        if level == "sequence":
            difference = difference.sum(-1, keepdim=True)
        inputs["importance_sampling_ratio"] = difference.exp().clamp(max=CAP)
    return inputs


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def ours(case: Case, table: TrainerConfig) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
    model = load_model(TINY_MODEL_DIR, device=torch.device("cpu"))
    policy = Policy(model, temperature=1.0, autocast=None)
    # Without samples that have no gradient, as the trainer does it.
    batch = make_batch(case.groups, table, step=0, vocab_size=16, max_new_tokens=MAX_NEW_TOKENS)
    used = [number for number in range(12) if table.kl_coefficient or number < 8]
    tokens = Tokens.of(batch, policy.device, has_reference=bool(table.kl_coefficient))
    columns = {
        name: torch.tensor([value for number in used for value in case.given[name][number]])
        for name in GIVEN
    }
    tokens.prox_N = columns["old"]
    if table.kl_coefficient:
        tokens.reference_N = columns["reference"]
    for micro in make_micro_batches(
        batch.samples, max_tokens=24, hidden_size=policy.hidden_size, share_prefixes=True
    ):
        add_gradient(policy, micro, tokens, objective_of(table))
    return float(tokens.loss), gradients(model), tokens.policy_N


def advantages_of(table: TrainerConfig) -> list[float]:
    one = 1.0 if objective_of(table).scale_advantages else 0.5
    return [-one, one] * 4 + [0.0] * 4


@pytest.mark.parametrize("limits", [(0.0, 0.0), (1.5, 0.0), (0.0, 0.1), (1.5, 0.1)])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_dual_clip_and_off_policy_mask_are_those_of_trl(
    trl_trainer: Any,  # noqa: ANN401 - it is not imported before it is needed
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    limits: tuple[float, float],
) -> None:
    dual_clip, off_policy_mask = limits
    case = make_case(0)
    table = TrainerConfig(
        length_norm="token",
        ratio_level=LEVEL_OF[level],  # type: ignore[arg-type]
        importance_cap=CAP,
        dual_clip=dual_clip,
        off_policy_mask=off_policy_mask,
        max_drift=0.0,
    )
    for name, value in {
        "loss_type": "bnpo",
        "importance_sampling_level": level,
        "beta": 0.0,
        "use_vllm": True,
        "off_policy_mask_threshold": off_policy_mask or None,
    }.items():
        monkeypatch.setattr(trl_trainer, name, value)
    monkeypatch.setattr(trl_trainer.args, "delta", dual_clip or None)

    inputs = trl_inputs(case, advantages_of(table), "token")
    inputs["sampling_per_token_logps"] = padded(case.given["behaviour"])
    loss = trl_trainer._compute_loss(trl_trainer.model, inputs)
    loss.backward()
    theirs = gradients(trl_trainer.model)
    our_loss, our_gradients, _ = ours(case, table)

    assert our_loss == pytest.approx(float(loss.detach()), rel=0, abs=1e-5)
    for name, gradient in theirs.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("kl_estimator", [None, "k3", "k3_unbiased"])
@pytest.mark.parametrize("importance_level", [None, "token", "sequence"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_loss_and_gradients_are_those_of_trl(
    trl_trainer: Any,  # noqa: ANN401 - it is not imported before it is needed
    loss_type: str,
    level: str,
    importance_level: str | None,
    kl_estimator: str | None,
) -> None:
    case = make_case(0)
    table = TrainerConfig(
        length_norm=NORM_OF[loss_type],  # type: ignore[arg-type]
        ratio_level=LEVEL_OF[level],  # type: ignore[arg-type]
        importance="none" if importance_level is None else "decoupled",
        importance_level=importance_level or "token",  # type: ignore[arg-type]
        importance_cap=CAP,
        kl_coefficient=0.0 if kl_estimator is None else 0.1,
        kl_estimator=kl_estimator or "k3",  # type: ignore[arg-type]
        dual_clip=0.0,
        off_policy_mask=0.0,
        max_drift=0.0,
    )
    trl_trainer.loss_type = loss_type
    trl_trainer.importance_sampling_level = level
    trl_trainer.beta = table.kl_coefficient
    trl_trainer.args.use_bias_correction_kl = kl_estimator == "k3_unbiased"
    trl_trainer.use_vllm = importance_level is not None

    inputs = trl_inputs(case, advantages_of(table), importance_level)
    loss = trl_trainer._compute_loss(trl_trainer.model, inputs)
    loss.backward()
    theirs = gradients(trl_trainer.model)
    our_loss, our_gradients, _ = ours(case, table)

    assert our_loss == pytest.approx(float(loss.detach()), rel=0, abs=1e-5)
    assert our_gradients.keys() == theirs.keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 0.01
    for name, gradient in theirs.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=0, atol=1e-5, msg=name)


def test_the_clip_is_at_work_in_these_cases() -> None:
    case = make_case(0)
    _, _, policy_N = ours(case, TrainerConfig())
    old_N = torch.tensor([v for row in case.given["old"][:8] for v in row])
    ratio_N = (policy_N - old_N).exp()
    assert bool((ratio_N < 0.8).any())
    assert bool((ratio_N > 1.28).any())
    assert bool(((ratio_N > 0.8) & (ratio_N < 1.28)).any())
