"""What one update costs: ``python -m benchmarks.update [--model PATH] [--threads N] [--plain]``.

The batch is the demo's: 16 prompts of about 35 tokens, 8 completions of about 5
tokens each, all groups unequal (the worst case: others cost nothing). CPU seconds
are the figure to compare; wall seconds depend on what else the machine does.
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

from echo2swarm.models.resolve import resolve_model
from learner.trainer.messages import Start, TrainGroup, TrainRollout
from learner.trainer.worker import load_trainer
from protocols.packed import pack_floats, pack_tokens

SHOTS = "4 + 3 = 7\n8 - 2 = 6\n3 - 5 = -2\n"


def make_groups(tokenizer: Tokenizer, seed: int) -> tuple[TrainGroup, ...]:
    """Make up a batch like the demo's."""
    rng = random.Random(seed)
    groups = []
    for group_id in range(16):
        prompt = tokenizer.encode(f"{SHOTS}{rng.randrange(10)} + {rng.randrange(10)} =").ids
        completions = [tokenizer.encode(f" {rng.randrange(-9, 19)}\n").ids for _ in range(7)]
        completions.append([rng.randrange(1000) for _ in range(6)])
        rollouts = tuple(
            TrainRollout(
                tokens=pack_tokens(completion),
                logprobs=pack_floats([-1.0] * len(completion)),
                version=0,
                reward=float(index % 2),
                is_truncated=False,
                peer_id="peer",
            )
            for index, completion in enumerate(completions)
        )
        groups.append(
            TrainGroup(group_id=group_id, prompt_tokens=pack_tokens(prompt), rollouts=rollouts)
        )
    return tuple(groups)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--plain", action="store_true", help="a row per completion")
    options = parser.parse_args()
    folder = resolve_model(options.model, lambda line: print(line, file=sys.stderr))
    trainer = load_trainer(
        Start(
            model_dir=str(folder),
            # Its logprobs are made up, and are to count.
            trainer={
                "threads": options.threads,
                "compute_dtype": options.dtype,
                "max_drift": 0.0,
            },
            seed=0,
            temperature=1.0,
        )
    )
    if options.plain:
        from learner.trainer.trainer import PolicyTrainer  # noqa: PLC0415 - after the threads are set

        assert isinstance(trainer, PolicyTrainer)  # noqa: S101
        trainer._policy.shares_prefixes = False
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    print("tokens computed | CPU s | wall s")
    for step in range(options.updates):
        updated = trainer.update(step, make_groups(tokenizer, step), lambda *_: None)
        found = updated.metrics
        print(
            f"{found['num_tokens_computed']:15.0f} | {found['update_cpu_s']:5.2f} | "
            f"{found['update_s']:6.2f}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        started_s = time.perf_counter()
        trainer.write_weights(Path(scratch) / "weights")
        print(f"weights written in {time.perf_counter() - started_s:.2f} s")
        started_s = time.perf_counter()
        trainer.copy_state()(Path(scratch) / "checkpoint")
        print(f"checkpoint saved in {time.perf_counter() - started_s:.2f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
