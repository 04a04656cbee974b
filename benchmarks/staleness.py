"""What does staleness cost in reward, with and without correcting for it?

``python -m benchmarks.staleness [--quick] [--coupled] [--json FILE] [--plot FILE]``

The real trainer on a model of 0.1 M parameters that learns to sort three digits. The rollouts
of the update from version t are sampled with version t - S *exactly* (version 0 before there
is one), as the trainer would have published it: rounded to bfloat16. Nothing else differs
between runs of one seed but S and the correction.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.text.cli_errors import run_cli
from learner.demo.settings import TINY_MODEL_DIR
from learner.trainer.messages import Start, TrainGroup, TrainRollout
from learner.trainer.worker import load_trainer
from protocols.packed import pack_floats, pack_tokens

if TYPE_CHECKING:
    import torch

    from learner.trainer.trainer import PolicyTrainer

RECOMMENDED: Final = "decoupled"
CORRECTIONS: Final = (RECOMMENDED, "none")
"""As ``trainer.importance`` names them; "coupled" can be asked for."""
TOLERATED: Final = 6
"""The staleness up to which nothing may be lost."""
MIN_NOISE: Final = 0.02
NOISE_OF_ONE_SEED: Final = 0.06
"""Where there is only one, its spread can't be told; this is twice that of three."""
MIN_GAIN: Final = 0.05
"""Of correcting at that staleness, over not correcting."""
_NUM_PROMPTS: Final = 16
_GROUP_SIZE: Final = 8
_NUM_EVALUATED: Final = 256
_EVALUATE_EVERY: Final = 5
_ASK, _EOS = 11, 10
_NUM_DIGITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Which runs."""

    staleness: tuple[int, ...]
    corrections: tuple[str, ...]
    seeds: tuple[int, ...]
    num_steps: int


FULL: Final = Study(
    staleness=(0, 1, 3, 6, 11), corrections=CORRECTIONS, seeds=(0, 1, 2), num_steps=60
)
QUICK: Final = Study(staleness=(0, 6), corrections=CORRECTIONS, seeds=(0,), num_steps=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: rewards of fresh prompts, sampled at temperature 1."""

    staleness: int
    correction: str
    seed: int
    steps: tuple[int, ...]
    rewards: tuple[float, ...]
    truncated_share: float
    """Of importance weights, over the run."""
    effective_sample_share: float

    @property
    def final(self) -> float:
        """Mean of the last three evaluations."""
        return fmean(self.rewards[-3:])


# Sampling.


class Sampler:
    """Samples answers with the weights of any version."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - after the threads are set

        from learner.trainer.policy import load_model  # noqa: PLC0415

        self._torch = torch
        self._model = load_model(TINY_MODEL_DIR, device=torch.device("cpu"))

    def load(self, weights: "dict[str, torch.Tensor]") -> None:
        """Take over a version's weights."""
        self._model.load_state_dict(weights, strict=False)

    def answers(
        self, prompts: Sequence[Sequence[int]], generator: "torch.Generator"
    ) -> list[tuple[list[int], list[float]]]:
        """Return an answer to each prompt, up to and with its first EOS, and its logprobs."""
        torch = self._torch
        tokens = torch.tensor(prompts)
        start, chosen_logprobs = tokens.shape[1], []
        with torch.no_grad():
            for _ in range(_NUM_DIGITS + 1):
                logprobs = self._model(input_ids=tokens).logits[:, -1].log_softmax(-1)
                chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
                chosen_logprobs.append(logprobs.gather(1, chosen))
                tokens = torch.cat([tokens, chosen], 1)
        found = []
        for answer, values in zip(
            tokens[:, start:].tolist(), torch.cat(chosen_logprobs, 1).tolist(), strict=True
        ):
            size = answer.index(_EOS) + 1 if _EOS in answer else len(answer)
            found.append((answer[:size], values[:size]))
        return found


def reward_of(prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Return 1 for the digits in order and the end, else 0."""
    return float(list(answer) == [*sorted(prompt[:_NUM_DIGITS]), _EOS])


def make_prompts(rng: random.Random, count: int) -> list[list[int]]:
    """Return prompts that ask to sort three digits."""
    return [[*(rng.randrange(10) for _ in range(_NUM_DIGITS)), _ASK] for _ in range(count)]


def make_groups(
    sampler: Sampler, prompts: Sequence[list[int]], version: int, generator: "torch.Generator"
) -> list[TrainGroup]:
    """Sample a batch."""
    repeated = [prompt for prompt in prompts for _ in range(_GROUP_SIZE)]
    answers = iter(sampler.answers(repeated, generator))
    groups = []
    for number, prompt in enumerate(prompts):
        rollouts = []
        for _ in range(_GROUP_SIZE):
            answer, logprobs = next(answers)
            rollouts.append(
                TrainRollout(
                    tokens=pack_tokens(answer),
                    logprobs=pack_floats(logprobs),
                    version=version,
                    reward=reward_of(prompt, answer),
                    is_truncated=answer[-1] != _EOS,
                    peer_id="node",
                )
            )
        groups.append(
            TrainGroup(group_id=number, prompt_tokens=pack_tokens(prompt), rollouts=tuple(rollouts))
        )
    return groups


# Runs.


def open_tiny_trainer(correction: str, seed: int) -> "PolicyTrainer":
    """Return a trainer at the recommended settings, but for the correction."""
    trainer: Any = load_trainer(
        Start(
            model_dir=str(TINY_MODEL_DIR),
            trainer={
                "learning_rate": 3e-4,
                "warmup_steps": 0,
                "beta2": 0.95,
                "importance": correction,
                # Without correction, what is far off counts, too.
                **({"max_drift": 0.0} if correction == "none" else {}),
                "device": "cpu",
                "compute_dtype": "float32",
                "threads": 1,
            },
            seed=seed,
            temperature=1.0,
            max_new_tokens=_NUM_DIGITS + 1,
        )
    )
    return trainer  # type: ignore[no-any-return]


def published(trainer: "PolicyTrainer") -> "dict[str, torch.Tensor]":
    """Return the present weights as nodes would get them."""
    from learner.trainer.weights import model_tensors  # noqa: PLC0415 - after the threads are set

    return {
        name: tensor.bfloat16().float() for name, tensor in model_tensors(trainer._model).items()
    }


def train(staleness: int, correction: str, seed: int, num_steps: int) -> Run:
    """Make one run."""
    trainer = open_tiny_trainer(correction, seed)
    import torch  # noqa: PLC0415 - after the threads are set

    sampler = Sampler()
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    versions = [published(trainer)]
    steps: list[int] = []
    rewards: list[float] = []
    shares: list[tuple[float, float]] = []

    def evaluate(step: int) -> None:
        sampler.load(versions[-1])
        prompts = make_prompts(random.Random(f"evaluation {seed}"), _NUM_EVALUATED)
        answers = sampler.answers(prompts, torch.Generator().manual_seed(step))
        steps.append(step)
        rewards.append(fmean(reward_of(p, a) for p, (a, _) in zip(prompts, answers, strict=True)))

    evaluate(0)
    for step in range(num_steps):
        version = max(0, step - staleness)
        sampler.load(versions[version - step - 1])
        groups = make_groups(sampler, make_prompts(rng, _NUM_PROMPTS), version, generator)
        updated = trainer.update(step, groups, lambda *_: None)
        if updated.by_staleness:
            (found,) = updated.by_staleness.items()
            assert found[0] == step - version  # noqa: S101 - the lag is what was asked for
            shares.append(
                (found[1]["importance_truncated_share"], found[1]["effective_sample_share"])
            )
        versions = [*versions, published(trainer)][-staleness - 1 :]
        if (step + 1) % _EVALUATE_EVERY == 0:
            evaluate(step + 1)
    return Run(
        staleness=staleness,
        correction=correction,
        seed=seed,
        steps=tuple(steps),
        rewards=tuple(rewards),
        truncated_share=fmean(share for share, _ in shares),
        effective_sample_share=fmean(share for _, share in shares),
    )


def measure(study: Study, console: Console) -> Iterator[Run]:
    """Make all runs. On policy there is nothing to correct: one run stands for all."""
    cases = [
        (staleness, correction, seed)
        for staleness in study.staleness
        for correction in (study.corrections if staleness else (RECOMMENDED,))
        for seed in study.seeds
    ]
    with Progress(console=console, transient=True) as progress:
        for case in progress.track(cases, description="training"):
            yield train(*case, study.num_steps)


# What came of it.


def judge(runs: Sequence[Run], study: Study) -> Outcome:
    """Hold the final rewards against those of on-policy training."""
    of = {
        (s, c): [run for run in runs if (run.staleness, run.correction) == (s, c)]
        for s in study.staleness
        for c in study.corrections
    }
    mean = {case: fmean(run.final for run in found) for case, found in of.items() if found}
    on_policy = of[0, RECOMMENDED]
    marks = []
    for s in study.staleness:
        if 0 < s <= TOLERATED:
            noise = noise_of(on_policy, of[s, RECOMMENDED])
            marks.append(
                Mark(
                    name=f"final reward, S = {s} minus S = 0 (noise: {noise:.3f})",
                    value=mean[s, RECOMMENDED] - mean[0, RECOMMENDED],
                    at_least=-noise,
                )
            )
    if "none" in study.corrections:
        marks.append(
            Mark(
                name=f"gain of correcting at S = {TOLERATED}",
                value=mean[TOLERATED, RECOMMENDED] - mean[TOLERATED, "none"],
                at_least=MIN_GAIN,
            )
        )
    return Outcome(
        name="staleness",
        what=(
            f"Reward after {study.num_steps} updates of {_NUM_PROMPTS} x {_GROUP_SIZE} rollouts "
            f"sampled exactly S versions ago, {len(study.seeds)} seeds; sorting three digits, "
            f"from {fmean(run.rewards[0] for run in runs):.3f}."
        ),
        columns=("S", "correction", "final reward", "lowest seed", "truncated", "effective"),
        rows=tuple(
            (
                f"S = {s}",
                c if s else "(any)",
                mean[s, c],
                min(run.final for run in found),
                fmean(run.truncated_share for run in found),
                fmean(run.effective_sample_share for run in found),
            )
            for (s, c), found in of.items()
            if found
        ),
        marks=tuple(marks),
        figures={"runs": list(runs), "study": study},
    )


def noise_of(one: Sequence[Run], other: Sequence[Run]) -> float:
    """Return two standard errors of the difference of the means; at least a little."""
    if len(one) < 2 or len(other) < 2:
        return NOISE_OF_ONE_SEED
    errors = [stdev(run.final for run in runs) / sqrt(len(runs)) for runs in (one, other)]
    return max(MIN_NOISE, 2 * sqrt(sum(error**2 for error in errors)))


def plot(runs: Sequence[Run], study: Study, path: Path) -> None:
    """Draw mean rewards over the steps, one panel per correction."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    titles = {
        RECOMMENDED: "truncated importance weights (default)",
        "coupled": "clip against the sampling policy",
        "none": "no correction",
    }
    figure = Figure(figsize=(4.2 * len(study.corrections), 3.6), layout="constrained")
    panels = figure.subplots(1, len(study.corrections), sharey=True, squeeze=False)[0]
    for axes, correction in zip(panels, study.corrections, strict=True):
        for number, s in enumerate(study.staleness):
            wanted = correction if s else RECOMMENDED
            found = [r for r in runs if (r.staleness, r.correction) == (s, wanted)]
            curves = list(zip(*(run.rewards for run in found), strict=True))
            color = f"C{number}"
            axes.plot(found[0].steps, [fmean(at) for at in curves], color=color, label=f"S = {s}")
            axes.fill_between(
                found[0].steps,
                [min(at) for at in curves],
                [max(at) for at in curves],
                color=color,
                alpha=0.12,
                linewidth=0,
            )
        axes.set(title=titles[correction], xlabel="update", ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("reward of fresh prompts")
    panels[0].legend(loc="lower right")
    figure.savefig(path, dpi=110)


@click.command()
@click.option("--quick", is_flag=True, help="One seed, S = 0 and 6: under a minute.")
@click.option("--coupled", is_flag=True, help="Also with the clip against who sampled, as in PPO.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, coupled: bool, json_path: Path | None, plot_path: Path | None) -> int:
    """Measure what staleness costs in reward, with and without correction."""
    study = QUICK if quick else FULL
    if coupled:
        study = replace(study, corrections=(RECOMMENDED, "coupled", "none"))
    console = Console()
    runs = list(measure(study, console))
    if plot_path is not None:
        plot(runs, study, plot_path)
    return finish(judge(runs, study), json_path=json_path, console=console)


if __name__ == "__main__":
    run_cli(main, program="staleness")
