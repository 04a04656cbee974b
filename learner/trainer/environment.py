"""How a trainer's process is set up before it imports torch."""

import os

from echo2swarm.models.cache import torch_env
from learner.config import TrainerConfig


def prepare() -> None:
    """Set what libraries read when they are imported."""
    # Everything comes from folders that are there already.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ |= torch_env()


def num_trainer_threads(num_cores: int) -> int:
    """Return how many threads suit the trainer on a machine that does other work too."""
    return max(1, num_cores // 2)


def threads_per_rank(table: TrainerConfig) -> int:
    """Return how many threads each process of the trainer uses."""
    threads = table.threads or num_trainer_threads(os.cpu_count() or 1)
    return max(1, threads // table.num_processes)


def set_threads(threads: int) -> None:
    """Limit the threads of libraries that are yet to be imported.

    Threads that wait must sleep: by default they spin, which on a machine with as many busy
    threads as cores makes all of them many times slower.
    """
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
