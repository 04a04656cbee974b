"""The run's configuration: its tables, where they are read from, what must fit together."""

from echo2swarm.text.toml_tables import Table
from learner.config.tables import (
    CheckpointConfig,
    EvalConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SelectorConfig,
    SwarmConfig,
    TrackingConfig,
    TrainerConfig,
)

__all__ = [
    "CheckpointConfig",
    "EvalConfig",
    "LearnerConfig",
    "ModelConfig",
    "RolloutConfig",
    "RunConfig",
    "SelectorConfig",
    "SwarmConfig",
    "Table",
    "TrackingConfig",
    "TrainerConfig",
]
