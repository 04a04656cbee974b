"""What must fit together in a configuration, beyond each key's own range."""

import re
from typing import Final

from echo2swarm.network.addresses import split_address
from echo2swarm.network.own_addresses import check_advertised, check_listen
from echo2swarm.system.errors import ConfigError, UsageError
from learner.config.tables import (
    EvalConfig,
    LearnerConfig,
    RolloutConfig,
    SwarmConfig,
    TrainerConfig,
)
from protocols.errors import RemoteProtocolError
from protocols.leases import MAX_GROUPS
from protocols.rollouts import MAX_ROLLOUTS
from protocols.ticket import MAX_ADDRESSES

MAX_EVAL_SAMPLES: Final = 100_000
"""Completions of one evaluation."""
_DEVICE: Final = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def check_config(config: LearnerConfig) -> LearnerConfig:
    """Return ``config`` if its keys fit together.

    Raises:
        ConfigError: they don't; the message starts with the key to change.
    """
    _check_rollouts(config.rollouts)
    _check_swarm(config.swarm)
    _check_trainer(config.trainer)
    _check_eval(config.eval)
    return config


def _check_rollouts(rollouts: RolloutConfig) -> None:
    most = rollouts.max_staleness + 1
    if rollouts.publish_every > most:
        raise ConfigError(
            f"rollouts.publish_every: expected at most rollouts.max_staleness + 1 = {most}, got "
            f"{rollouts.publish_every}: no rollout would be fresh enough for the last steps before "
            "a version is published"
        )
    if isinstance(rollouts.lease_prompts, str):
        return
    if rollouts.lease_prompts > MAX_GROUPS:
        raise ConfigError(
            f"rollouts.lease_prompts: expected at most {MAX_GROUPS}, got {rollouts.lease_prompts}"
        )
    if (per_lease := rollouts.lease_prompts * rollouts.group_size) > MAX_ROLLOUTS:
        raise ConfigError(
            f"rollouts.lease_prompts: a lease would be of {per_lease} completions (times "
            f"rollouts.group_size); expected at most {MAX_ROLLOUTS}"
        )


def _check_swarm(swarm: SwarmConfig) -> None:
    if not swarm.listen:
        raise ConfigError("swarm.listen: expected at least one address, or nobody can join")
    if len(swarm.advertise) > MAX_ADDRESSES:
        raise ConfigError(
            f"swarm.advertise: expected at most {MAX_ADDRESSES} addresses, as a ticket has room "
            f"for, got {len(swarm.advertise)}"
        )
    key = "listen"
    try:
        for address in swarm.listen:
            check_listen(address)
        key = "advertise"
        for address in swarm.advertise:
            check_advertised(address)
        key = "bootstrap"
        for address in swarm.bootstrap:
            _, where = split_address(address)
            check_advertised(where)
    except (UsageError, RemoteProtocolError) as exc:
        raise ConfigError(f"swarm.{key}: {exc}") from None


def _check_trainer(trainer: TrainerConfig) -> None:
    if not _DEVICE.fullmatch(trainer.device):
        raise ConfigError(
            f'trainer.device: expected "auto", "cpu", "cuda" or "cuda:N", got "{trainer.device}"'
        )
    if trainer.num_processes > 1 and trainer.device.startswith("cuda:"):
        raise ConfigError(
            f'trainer.device: expected "cuda" with trainer.num_processes = '
            f'{trainer.num_processes}, got "{trainer.device}", which is one GPU'
        )


def _check_eval(table: EvalConfig) -> None:
    if (num := table.num_prompts * table.num_samples) > MAX_EVAL_SAMPLES:
        raise ConfigError(
            f"eval.num_samples: an evaluation would be of {num} completions (times "
            f"eval.num_prompts); expected at most {MAX_EVAL_SAMPLES}"
        )
