"""One update: the trainer's speed and memory against those of TRL's GRPOTrainer.

``python -m benchmarks.learner_step [--quick] [--json FILE]``

The same model, batch, loss, optimizer and type (float32), a process each, one after the other,
one thread. Whole groups of completions of random length, whose prompt they share. TRL's step is
its own ``training_step`` on a batch that is ready (nothing is generated), the limit on the
gradient's norm, and its own optimizer's step. Tokens are those of completions.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish, ratio
from echo2swarm.system.errors import SwarmError
from echo2swarm.text.cli_errors import run_cli
from learner.demo.settings import TINY_MODEL_DIR
from learner.trainer.environment import set_threads
from learner.trainer.messages import Start, TrainGroup, TrainRollout
from learner.trainer.worker import load_trainer
from protocols.packed import pack_floats, pack_tokens, unpack_tokens

if TYPE_CHECKING:
    import torch

OURS: Final = "ours"
OURS_DEFAULT: Final = "ours, rounding as published"
TRL: Final = "TRL"
SIDES: Final = (OURS, TRL, OURS_DEFAULT)
_GROUP_SIZE: Final = 8
_LEARNING_RATE: Final = 1e-6
_CHILD_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is trained on."""

    model: str
    num_groups: int
    num_prompt: int
    max_new_tokens: int
    num_updates: int
    """Measured, after one of two completions; the fastest counts."""


FULL: Final = Load(model="embedded", num_groups=1, num_prompt=64, max_new_tokens=64, num_updates=1)
QUICK: Final = Load(
    model=str(TINY_MODEL_DIR), num_groups=16, num_prompt=64, max_new_tokens=96, num_updates=5
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One side."""

    side: str
    tokens_per_s: float
    update_s: float
    loaded_bytes: int
    """Held before the first update."""
    peak_bytes: int


def make_groups(load: Load, vocab_size: int) -> list[TrainGroup]:
    """Make up a batch: half of each group is rewarded."""
    rng = random.Random(0)
    groups = []
    for group_id in range(load.num_groups):
        prompt = [rng.randrange(vocab_size) for _ in range(load.num_prompt)]
        rollouts = []
        for index in range(_GROUP_SIZE):
            size = rng.randint(load.max_new_tokens // 3, load.max_new_tokens)
            completion = [rng.randrange(vocab_size) for _ in range(size)]
            rollouts.append(
                TrainRollout(
                    tokens=pack_tokens(completion),
                    logprobs=pack_floats([-1.0] * size),
                    version=0,
                    reward=float(index % 2),
                    is_truncated=True,
                    peer_id="node",
                )
            )
        prompt_tokens = pack_tokens(prompt)
        groups.append(
            TrainGroup(group_id=group_id, prompt_tokens=prompt_tokens, rollouts=tuple(rollouts))
        )
    return groups


def num_tokens(groups: Sequence[TrainGroup]) -> int:
    """Return how many tokens are learned from."""
    return sum(len(unpack_tokens(r.tokens)) for group in groups for r in group.rollouts)


# In a process of its own.


class Ours:
    """The project's trainer."""

    def __init__(self, folder: Path, load: Load, *, publish_dtype: str) -> None:
        self._trainer: Any = load_trainer(
            Start(
                model_dir=str(folder),
                trainer={
                    "objective": "dapo",
                    "learning_rate": _LEARNING_RATE,
                    "max_drift": 0.0,  # its logprobs are made up, and are to count
                    "warmup_steps": 0,
                    "device": "cpu",
                    "compute_dtype": "float32",
                    "publish_dtype": publish_dtype,
                    "micro_batch_tokens": 1 << 20,
                    "threads": 1,
                },
                seed=0,
                temperature=1.0,
                max_new_tokens=load.max_new_tokens,
            )
        )
        self._step = 0

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self._trainer.started().vocab_size)

    def update(self, groups: Sequence[TrainGroup]) -> None:
        """Make one update."""
        self._trainer.update(self._step, groups, lambda *_: None)
        self._step += 1


class Trls:
    """TRL's trainer."""

    def __init__(self, folder: Path, load: Load, scratch: Path) -> None:
        set_threads(1)
        import torch  # noqa: PLC0415 - after the threads are set

        torch.set_num_threads(1)
        # Slow, only for this side, and hardly typed.
        datasets: Any = import_module("datasets")
        transformers: Any = import_module("transformers")
        trl: Any = import_module("trl")

        from learner.trainer.policy import load_model  # noqa: PLC0415

        args = trl.GRPOConfig(
            output_dir=str(scratch),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=load.num_groups * _GROUP_SIZE,
            num_generations=_GROUP_SIZE,
            max_completion_length=load.max_new_tokens,
            steps_per_generation=1,
            loss_type="dapo",
            beta=0.0,
            learning_rate=_LEARNING_RATE,
            activation_checkpointing=False,
        )
        self._torch = torch
        self._trainer = trl.GRPOTrainer(
            model=load_model(folder, device=torch.device("cpu")),
            args=args,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=datasets.Dataset.from_list([{"prompt": "1"}] * 8),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder),
        )
        # Batches are scored already.
        self._trainer._prepare_inputs = lambda generation_batch: generation_batch
        self._trainer.create_optimizer()
        self._trainer.current_gradient_accumulation_steps = 1
        self._trainer.model.train()

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self._trainer.model.get_input_embeddings().weight.shape[0])

    def update(self, groups: Sequence[TrainGroup]) -> None:
        """Make one update."""
        trainer, torch = self._trainer, self._torch
        trainer.training_step(trainer.model, self._inputs(groups), None)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.model.zero_grad(set_to_none=True)

    def _inputs(self, groups: Sequence[TrainGroup]) -> "dict[str, torch.Tensor]":
        torch = self._torch
        prompts, completions, advantages = [], [], []
        for group in groups:
            for rollout in group.rollouts:
                prompts.append(torch.tensor(unpack_tokens(group.prompt_tokens)))
                completions.append(torch.tensor(unpack_tokens(rollout.tokens)))
                advantages.append(2 * rollout.reward - 1)
        pad = torch.nn.utils.rnn.pad_sequence
        mask = pad([torch.ones_like(row) for row in completions], batch_first=True)
        return {
            "prompt_ids": torch.stack(prompts),
            "prompt_mask": torch.ones_like(torch.stack(prompts)),
            "completion_ids": pad(completions, batch_first=True),
            "completion_mask": mask,
            "advantages": torch.tensor(advantages),
            "num_items_in_batch": mask.sum().float(),
        }


def measure_side(side: str, folder: Path, load: Load) -> Measured:
    """Measure in this process."""
    with tempfile.TemporaryDirectory() as scratch:
        subject: Ours | Trls
        if side == TRL:
            subject = Trls(folder, load, Path(scratch))
        else:
            publish_dtype = "float32" if side == OURS else "bfloat16"
            subject = Ours(folder, load, publish_dtype=publish_dtype)
        from learner.trainer.hardware import resident_bytes  # noqa: PLC0415

        loaded_bytes = resident_bytes()
        groups = make_groups(load, subject.vocab_size)
        first = groups[0]
        subject.update([msgspec.structs.replace(first, rollouts=first.rollouts[:2])])
        times_s = []
        for _ in range(load.num_updates):
            started_s = time.perf_counter()
            subject.update(groups)
            times_s.append(time.perf_counter() - started_s)
    return Measured(
        side=side,
        tokens_per_s=num_tokens(groups) / min(times_s),
        update_s=min(times_s),
        loaded_bytes=loaded_bytes,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


# Here.


def measure(load: Load, *, is_quick: bool, console: Console) -> list[Measured]:
    """Measure all sides, one after the other."""
    found = []
    for side in SIDES:
        console.print(f"measuring: {side}")
        arguments = ["--child", side, *(["--quick"] if is_quick else [])]
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.learner_step", *arguments],
            capture_output=True,
            text=True,
            timeout=_CHILD_S,
            check=False,
        )
        if ran.returncode:
            raise SwarmError(f"{side} failed:\n{ran.stderr[-2000:]}")
        found.append(Measured(**json.loads(ran.stdout.splitlines()[-1])))
    return found


def judge(found: Sequence[Measured], load: Load) -> Outcome:
    """Hold ours against TRL's."""
    of = {each.side: each for each in found}
    ours, theirs = of[OURS], of[TRL]
    model = Path(load.model).name
    return Outcome(
        name="learner_step",
        what=(
            f"One update of {model} in float32, {load.num_groups} x {_GROUP_SIZE} completions of "
            f"{load.max_new_tokens // 3} to {load.max_new_tokens} tokens, prompts of "
            f"{load.num_prompt}; one thread."
        ),
        columns=("trainer", "tokens/s", "s per update", "MB loaded", "MB at most"),
        rows=tuple(
            (
                m.side,
                m.tokens_per_s,
                m.update_s,
                f"{m.loaded_bytes / 1e6:.0f}",
                f"{m.peak_bytes / 1e6:.0f}",
            )
            for m in found
        ),
        marks=(
            Mark(
                name="tokens/s, ours over TRL's",
                value=ratio(ours.tokens_per_s, theirs.tokens_per_s),
                at_least=1.0,
            ),
            Mark(
                name="peak memory, ours over TRL's",
                value=ratio(ours.peak_bytes, theirs.peak_bytes),
                at_most=1.0,
            ),
        ),
        figures={"sides": list(found), "load": load},
    )


@click.command()
@click.option("--quick", is_flag=True, help="With a model of 0.1 M parameters: under a minute.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--child", type=click.Choice(SIDES), hidden=True)
def main(*, quick: bool, json_path: Path | None, child: str | None) -> int:
    """Measure an update's speed and memory against TRL's."""
    load = QUICK if quick else FULL
    if child is not None:
        from echo2swarm.models.resolve import resolve_model  # noqa: PLC0415

        warnings.simplefilter("ignore")
        folder = resolve_model(load.model, lambda line: print(line, file=sys.stderr))
        print(json.dumps(as_fields(measure_side(child, folder, load))))
        return 0
    console = Console()
    found = measure(load, is_quick=quick, console=console)
    return finish(judge(found, load), json_path=json_path, console=console)


def as_fields(measured: Measured) -> dict[str, Any]:
    """Return a side's figures for its parent."""
    return {name: getattr(measured, name) for name in Measured.__slots__}


if __name__ == "__main__":
    run_cli(main, program="learner_step")
