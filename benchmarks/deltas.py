"""Deltas between real versions: ``python -m benchmarks.deltas [--quick] [--json FILE]``.

This project's trainer makes consecutive versions of SmolLM2-135M at each learning
rate; deltas are then made, merged and applied between versions 1, 3 and 6 apart, and
every result is compared with the version it must be, byte for byte. Speeds are bytes
of whole weights per second of one core (CPU time), reading and writing files included.
``--versions FOLDER`` keeps the versions for the next run: 2 GB per learning rate.
"""

import argparse
import filecmp
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import zstandard
from tokenizers import Tokenizer

from benchmarks.harness import Mark, Outcome, finish
from echo2swarm.models.resolve import resolve_model
from echo2swarm.weights.delta.blocks import Sparse, apply, encode_block, word_type
from echo2swarm.weights.delta.compute import compose, diff, patch
from echo2swarm.weights.delta.element_size import word_bytes_of
from echo2swarm.weights.delta.sections import Compressor
from echo2swarm.weights.delta.stream import read_changes, read_header
from learner.trainer.messages import Start, TrainGroup, TrainRollout
from learner.trainer.worker import load_trainer
from protocols.packed import pack_floats, pack_tokens

RATES: Final = (1e-6, 5e-6, 1e-5)
GAPS: Final = (1, 3, 6)
NUM_UPDATES: Final = 10
QUICK_UPDATES: Final = 3
MARKED_RATE: Final = 5e-6
OTHER_TYPES: Final = ("float16", "float32")
MAX_SHARE: Final = 0.03
"""Of the weights, for a delta from one version to the next at ``MARKED_RATE``."""
MIN_ENCODED_GB_PER_S: Final = 0.3
MIN_DECODED_GB_PER_S: Final = 0.4
MIN_CODEC_GB_PER_S: Final = 1.0
SHOTS: Final = "4 + 3 = 7\n8 - 2 = 6\n3 - 5 = -2\n"
SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
BASE, RESULT = bytes(32), b"\1" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One delta between two versions."""

    rate: float
    dtype: str
    gap: int
    pair: str
    full_bytes: int
    xor_bytes: int
    absolute_bytes: int
    """The same layout with new values in place of XORs."""
    encoded_gb_per_s: float
    decoded_gb_per_s: float
    codec_gb_per_s: float
    """Decoding alone, from memory to memory."""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure deltas between real versions.")
    parser.add_argument("--quick", action="store_true", help="one learning rate, few versions")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--versions", type=Path, help="keep the versions here")
    options = parser.parse_args()
    rates = (MARKED_RATE,) if options.quick else RATES
    num_updates = QUICK_UPDATES if options.quick else NUM_UPDATES
    measured: list[Measured] = []
    figures: dict[str, Any] = {"zstd_of_full": {}, "merged": []}
    with tempfile.TemporaryDirectory() as scratch:
        model = resolve_model(options.model, say)
        for rate in rates:
            folder = (options.versions or Path(scratch)) / f"lr-{rate:g}"
            versions = train(model, folder, rate=rate, num_updates=num_updates)
            say(f"measuring at learning rate {rate:g}")
            work = Path(scratch) / "work"
            work.mkdir()
            measured += measure_gaps(versions, rate, work)
            figures["merged"] += list(measure_merging(versions, rate, work))
            if rate == MARKED_RATE:
                figures["zstd_of_full"] = zstd_of(versions[-1])
                measured += measure_types(versions, rate, work)
            shutil.rmtree(work)
            if options.versions is None:
                shutil.rmtree(folder)
    return finish(outcome_of(measured, figures), json_path=options.json)


def say(line: str) -> None:
    """Tell how far it is."""
    print(line, file=sys.stderr, flush=True)


# Versions.


def train(model: Path, folder: Path, *, rate: float, num_updates: int) -> list[Path]:
    """Return the weights after each update, newest last; those that are there are taken."""
    paths = [folder / f"v{step}" / "model.safetensors" for step in range(1, num_updates + 1)]
    if all(path.exists() for path in paths):
        return paths
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = {"learning_rate": rate, "warmup_steps": 0, "threads": 1}
    table = {**table, "max_drift": 0.0}  # the logprobs are made up, and are to count
    trainer = load_trainer(Start(model_dir=str(model), trainer=table, seed=0, temperature=1.0))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for step, path in enumerate(paths):
        updated = trainer.update(step, make_groups(tokenizer, step), lambda *_: None)
        seconds = updated.metrics["update_s"]
        say(f"learning rate {rate:g}: version {step + 1} of {num_updates} ({seconds:.1f} s)")
        trainer.write_weights(path.parent)
        if rate == MARKED_RATE and path in paths[-2:]:
            write_types(trainer, path)
    return paths


def write_types(trainer: object, version: Path) -> None:
    """Write the weights as they would be published in other types."""
    import torch  # noqa: PLC0415 - after the trainer has set the threads

    from learner.trainer.trainer import PolicyTrainer  # noqa: PLC0415
    from learner.trainer.weights import model_tensors, write_weights  # noqa: PLC0415

    assert isinstance(trainer, PolicyTrainer)  # noqa: S101
    for dtype in OTHER_TYPES:
        folder = as_type(version, dtype).parent
        folder.mkdir()
        write_weights(
            folder, model_tensors(trainer._model), getattr(torch, dtype), max_shard_bytes=1 << 40
        )


def make_groups(tokenizer: Tokenizer, seed: int) -> tuple[TrainGroup, ...]:
    """Return a small batch: sums with right and wrong answers, rewarded accordingly."""
    rng = random.Random(seed)
    groups = []
    for group_id in range(4):
        a, b = rng.randrange(10), rng.randrange(10)
        answers = [a + b, a + b, *(rng.randrange(19) for _ in range(4))]
        rollouts = []
        for answer in answers:
            completion = tokenizer.encode(f" {answer}\n").ids
            rollouts.append(
                TrainRollout(
                    tokens=pack_tokens(completion),
                    logprobs=pack_floats([-1.0] * len(completion)),
                    version=0,
                    reward=float(answer == a + b),
                    is_truncated=False,
                    peer_id="peer",
                )
            )
        prompt = pack_tokens(tokenizer.encode(f"{SHOTS}{a} + {b} =").ids)
        groups.append(TrainGroup(group_id=group_id, prompt_tokens=prompt, rollouts=tuple(rollouts)))
    return tuple(groups)


# Measuring.


def measure_gaps(versions: Sequence[Path], rate: float, work: Path) -> Iterator[Measured]:
    """Yield, for each gap, the delta to the newest version and to the one before."""
    for gap in GAPS:
        for newest in (len(versions) - 1, len(versions) - 2):
            if newest - gap >= 0:
                pair = f"v{newest - gap + 1}-v{newest + 1}"
                yield measure(
                    versions[newest - gap], versions[newest], work, rate=rate, gap=gap, pair=pair
                )


def measure(
    old: Path, new: Path, work: Path, *, rate: float, gap: int, pair: str, dtype: str = "bfloat16"
) -> Measured:
    """Make one delta and apply it; the result must be ``new``, byte for byte."""
    delta, made = work / "delta", work / "made"
    for path in (delta, made):
        path.unlink(missing_ok=True)
    size_bytes = new.stat().st_size
    encoded_s = cpu_seconds(lambda: make_delta(old, new, delta))
    decoded_s = cpu_seconds(
        lambda: run(
            patch(
                delta,
                [old],
                [(made, size_bytes)],
                base_root=BASE,
                result_root=RESULT,
                on_bytes=lambda _: None,
            )
        )
    )
    if not filecmp.cmp(made, new, shallow=False):
        raise SystemExit(f"{pair}: what was decoded is not what was encoded")
    absolute_bytes, codec_s = look_into(delta, new)
    return Measured(
        rate=rate,
        dtype=dtype,
        gap=gap,
        pair=pair,
        full_bytes=size_bytes,
        xor_bytes=delta.stat().st_size,
        absolute_bytes=absolute_bytes,
        encoded_gb_per_s=size_bytes / encoded_s / 1e9,
        decoded_gb_per_s=size_bytes / decoded_s / 1e9,
        codec_gb_per_s=size_bytes / codec_s / 1e9,
    )


def make_delta(
    old: Path, new: Path, target: Path, *, base: bytes = BASE, result: bytes = RESULT
) -> None:
    """Write the delta from one file to another."""
    run(
        diff(
            [old],
            [new],
            target,
            size_bytes=new.stat().st_size,
            word_bytes=word_bytes_of(new),
            base_root=base,
            result_root=result,
            max_bytes=2 * new.stat().st_size,
        )
    )


def look_into(delta: Path, new: Path) -> tuple[int, float]:
    """Return (bytes that new values would take in place of XORs, seconds to decode in memory)."""
    compressor, absolute_bytes = Compressor(), 0
    with delta.open("rb") as source:
        header = read_header(source)
        words = np.memmap(new, word_type(header.word_bytes), mode="r")
        for index, change in enumerate(read_changes(source, header)):
            first = index * (header.block_bytes // header.word_bytes)
            block = words[first : first + header.num_words(index)]
            if isinstance(change, Sparse):
                change = Sparse(change.positions, block[change.positions])  # noqa: PLW2901
            absolute_bytes += len(encode_block(change, compressor))
    block = np.zeros(header.block_bytes // header.word_bytes, words.dtype)
    with delta.open("rb") as source:
        read_header(source)
        started_s = time.thread_time()
        for index, change in enumerate(read_changes(source, header)):
            apply(change, block[: header.num_words(index)])
        codec_s = time.thread_time() - started_s
    return absolute_bytes, codec_s


def measure_merging(versions: Sequence[Path], rate: float, work: Path) -> Iterator[dict[str, Any]]:
    """Yield what it costs to make the delta over each gap from the one that is one shorter."""
    newest = len(versions) - 1
    roots = [bytes([1 + index]) * 32 for index in range(len(versions))]
    for gap in GAPS[1:]:
        if newest - gap < 0:
            continue
        first = newest - gap
        older, step = work / "older", work / "step"
        merged, direct = work / "merged", work / "direct"
        for path in (older, step, merged, direct):
            path.unlink(missing_ok=True)
        for target, start, end in (
            (older, first, newest - 1),
            (step, newest - 1, newest),
            (direct, first, newest),
        ):
            make_delta(versions[start], versions[end], target, base=roots[start], result=roots[end])
        seconds = cpu_seconds(
            lambda paths=(older, step, merged): run(compose(*paths, max_bytes=1 << 40))  # type: ignore[misc]
        )
        if not filecmp.cmp(merged, direct, shallow=False):
            raise SystemExit("a merged delta is not the direct one")
        steps_bytes = step.stat().st_size * gap
        yield {
            "rate": rate,
            "gap": gap,
            "cpu_s": seconds,
            "gb_of_weights_per_s": versions[newest].stat().st_size / seconds / 1e9,
            "merged_bytes": merged.stat().st_size,
            "steps_bytes_about": steps_bytes,
        }


def measure_types(versions: Sequence[Path], rate: float, work: Path) -> Iterator[Measured]:
    """Yield the step between the newest versions as published in other types."""
    for dtype in OTHER_TYPES:
        old, new = (as_type(version, dtype) for version in versions[-2:])
        yield measure(old, new, work, rate=rate, gap=1, pair="newest", dtype=dtype)


def as_type(version: Path, dtype: str) -> Path:
    """Return where the weights of a version are in another type."""
    return version.parent.with_name(f"{version.parent.name}-{dtype}") / version.name


def zstd_of(path: Path) -> dict[str, float]:
    """Return what zstd makes of whole weights: the share that is left, and its speed."""
    data = path.read_bytes()[: 64 << 20]
    started_s = time.thread_time()
    packed = zstandard.ZstdCompressor(level=3).compress(data)
    seconds = time.thread_time() - started_s
    return {"share": len(packed) / len(data), "gb_per_s": len(data) / seconds / 1e9}


def run(work: Iterator[None]) -> None:
    """Run a generator to its end."""
    for _ in work:
        pass


def cpu_seconds(work: Callable[[], None]) -> float:
    """Return how much CPU time of this thread something takes."""
    started_s = time.thread_time()
    work()
    return time.thread_time() - started_s


# Reporting.


def outcome_of(measured: Sequence[Measured], figures: dict[str, Any]) -> Outcome:
    """Hold the figures to the marks; of pairs with the same gap, the median counts."""
    rows = []
    keys = list(dict.fromkeys((m.rate, m.dtype, m.gap) for m in measured))
    for rate, dtype, gap in keys:
        of_key = [m for m in measured if (m.rate, m.dtype, m.gap) == (rate, dtype, gap)]
        rows.append(
            (
                f"{rate:g} {SHORT[dtype]}",
                gap,
                median(m.xor_bytes / 1e6 for m in of_key),
                100 * median(m.xor_bytes / m.full_bytes for m in of_key),
                100 * median(m.absolute_bytes / m.full_bytes for m in of_key),
                median(m.encoded_gb_per_s for m in of_key),
                median(m.decoded_gb_per_s for m in of_key),
                median(m.codec_gb_per_s for m in of_key),
            )
        )
    steps = [m for m in measured if (m.rate, m.dtype, m.gap) == (MARKED_RATE, "bfloat16", 1)]
    share = median(m.xor_bytes / m.full_bytes for m in steps)
    zstd = figures["zstd_of_full"]
    return Outcome(
        name="deltas",
        what=(
            f"{measured[0].full_bytes / 1e6:.0f} MB of weights in bfloat16; every delta gave back "
            f"the exact version. zstd -3 of the whole leaves {100 * zstd['share']:.0f} % at "
            f"{zstd['gb_per_s']:.2f} GB/s."
        ),
        columns=(
            "rate, type",
            "gap",
            "MB",
            "% of full",
            "% not XOR",
            "encode GB/s",
            "decode",
            "in memory",
        ),
        rows=tuple(rows),
        marks=(
            Mark(name=f"part of full, gap 1 at {MARKED_RATE:g}", value=share, at_most=MAX_SHARE),
            Mark(
                name="encode, file to file, GB/s per core",
                value=median(m.encoded_gb_per_s for m in steps),
                at_least=MIN_ENCODED_GB_PER_S,
            ),
            Mark(
                name="decode, file to file, GB/s per core",
                value=median(m.decoded_gb_per_s for m in steps),
                at_least=MIN_DECODED_GB_PER_S,
            ),
            Mark(
                name="decode, in memory, GB/s per core",
                value=median(m.codec_gb_per_s for m in steps),
                at_least=MIN_CODEC_GB_PER_S,
            ),
            Mark(
                name="XOR against new values, bytes of all deltas",
                value=sum(m.xor_bytes for m in measured) / sum(m.absolute_bytes for m in measured),
                at_most=1.0,
            ),
        ),
        figures=figures | {"deltas": [vars_of(m) for m in measured]},
    )


def vars_of(measured: Measured) -> dict[str, Any]:
    """Return a record of one measurement."""
    return {name: getattr(measured, name) for name in Measured.__slots__}


if __name__ == "__main__":
    sys.exit(main())
