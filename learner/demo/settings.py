"""What the demo runs: small enough for two cores, real enough to learn."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from echo2swarm.system.errors import UsageError
from learner.config import (
    CheckpointConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SwarmConfig,
    TrainerConfig,
)

TRAINER_THREADS: Final = 1
ENGINE_THREADS: Final = 1
"""Of each of the nodes; more than there are cores would only get into each other's way."""

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
"""The system picks free ports."""

TINY_MODEL_DIR: Final = Path(__file__).parents[2] / "tests" / "data" / "tiny-sorter"
"""Part of a checkout, not of an installed package."""

FULL_STEPS: Final = 32
QUICK_STEPS: Final = 40


_TINY_HAS_NO_VLLM: Final = (
    "vLLM has no kernels for the tiny model, whose attention heads are of 16: "
    "take --vllm-python without --quick and --model tiny"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What the user chose."""

    folder: Path
    seed: int
    num_steps: int
    num_nodes: int
    model: str
    """``embedded``, ``tiny``, a folder or a hub id."""
    kill_one_node: bool
    vllm_python: str | None = None
    """Interpreter of an environment with vLLM: the first node samples with it."""


def demo_config(settings: DemoSettings) -> LearnerConfig:
    """Return the run's configuration.

    Raises:
        UsageError: the tiny model is not here, or vLLM can't be had.
    """
    is_tiny = settings.model == "tiny"
    if is_tiny and settings.vllm_python:
        raise UsageError(_TINY_HAS_NO_VLLM)
    if settings.vllm_python and shutil.which(settings.vllm_python) is None:
        raise UsageError(f"--vllm-python: no interpreter at {settings.vllm_python}")
    if is_tiny and not TINY_MODEL_DIR.is_dir():
        raise UsageError(f"{TINY_MODEL_DIR}: the tiny model comes with a checkout only")
    return LearnerConfig(
        run=RunConfig(name="demo", num_steps=settings.num_steps, seed=settings.seed),
        model=ModelConfig(path=str(TINY_MODEL_DIR) if is_tiny else settings.model),
        task={"kind": "sort_digits"} if is_tiny else {"kind": "arithmetic"},
        swarm=SwarmConfig(listen=(LISTEN,), heartbeat_s=1.0),
        rollouts=RolloutConfig(
            prompts_per_step=16,
            group_size=8,
            max_staleness=2,
            publish_every=1,
            temperature=1.0,
            max_new_tokens=6,
            lease_prompts=6,
            # Where other work shares the cores a lease may take minutes; a node that is gone
            # is noticed by its silence.
            lease_timeout_s=300.0,
        ),
        trainer=TrainerConfig(
            learning_rate=5e-4 if is_tiny else 1e-5,
            warmup_steps=5,
            threads=TRAINER_THREADS,
        ),
        checkpoint=CheckpointConfig(every_steps=0),
    )


def engine_of(settings: DemoSettings, *, is_first: bool) -> tuple[str, tuple[str, ...]]:
    """Return which engine a node has, and its options on the command line."""
    options = [f"threads={ENGINE_THREADS}"]
    kind = "transformers"
    if settings.vllm_python and is_first:
        kind = "vllm"
        options.append(f"python={settings.vllm_python}")
    return kind, tuple(text for option in options for text in ("--engine-option", option))
