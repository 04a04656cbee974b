"""The trainer's processes and how they agree; with one process, nothing is asked of anybody.

Process number r of n is *rank* r. Every rank gets the same calls and does the same things in
the same order, but for what is said here; rank 0 alone speaks to the learner.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule

from echo2swarm.system.errors import ConfigError, StoreError
from learner.trainer.hardware import device_of

_LOOPBACK: Final = "127.0.0.1"
_MEET_S: Final = 600.0
"""Importing torch takes a minute on a cold disk."""
_COLLECTIVE_S: Final = 3600.0
"""Ranks that die are noticed otherwise, at once; this is for what nobody foresaw."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank's place among all of them."""

    rank: int = 0
    size: int = 1
    mesh: DeviceMesh | None = None
    """What parameters are spread over; None if there is one rank."""

    @property
    def is_first(self) -> bool:
        """Whether this one writes what is written once."""
        return self.rank == 0

    def add_up(self, *tensors: torch.Tensor) -> None:
        """Replace each tensor by its sum over all ranks."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def all_of(self, value: Any) -> list[Any]:  # noqa: ANN401 - whatever it is
        """Return what each rank gave, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let what may fail on one rank, as a write to disk may, fail on all of them.

        Nothing inside may wait for another rank.

        Raises:
            StoreError: it failed on another rank.
        """
        error: BaseException | None = None
        try:
            yield
        except BaseException as exc:
            error = exc
            raise
        finally:
            said = None if error is None else f"{type(error).__name__}: {error}"
            failures = [text for text in self.all_of(said) if text is not None]
            if error is None and failures:
                raise StoreError(f"another process of the trainer failed: {failures[0]}")


def meet(rank: int, size: int, port: int, *, device: torch.device) -> Ranks:
    """Connect to the other ranks, on this machine.

    Args:
        rank: which one this is.
        size: how many there are.
        port: where all find each other; see :func:`open_meeting`.
        device: of this rank.
    """
    store = TCPStore(_LOOPBACK, port, is_master=False, timeout=timedelta(seconds=_MEET_S))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=_COLLECTIVE_S),
    )
    ranks = Ranks(rank, size, init_device_mesh(device.type, (size,)))
    ranks.all_of(None)
    return ranks


def meet_others(rank: int, size: int, port: int, *, device: str) -> Ranks:
    """Connect to the other ranks; ``device`` is as ``trainer.device`` says.

    Raises:
        ConfigError: there are fewer GPUs than ranks, or torch is too old.
    """
    return meet(rank, size, port, device=device_of_rank(device_of(device), rank, size))


def open_meeting() -> TCPStore:
    """Return where the ranks find each other; its ``port`` is free, and open to nobody else."""
    listener = socket.socket()
    listener.bind((_LOOPBACK, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    return TCPStore(
        _LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def device_of_rank(device: torch.device, rank: int, size: int) -> torch.device:
    """Return which device a rank computes on.

    Raises:
        ConfigError: there are fewer GPUs than ranks, or torch is too old.
    """
    if size == 1:
        return device
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ConfigError(
            f"trainer.num_processes needs torch 2.9 or newer, not {torch.__version__}"
        )
    if device.type != "cuda":
        return device
    num_devices = torch.cuda.device_count()
    if num_devices < size:
        raise ConfigError(
            f"trainer.num_processes = {size}, but this machine has {num_devices} GPUs"
        )
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device
