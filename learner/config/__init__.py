"""The run's configuration: its tables, where they are read from, what must fit together."""

from learner.config.tables import (
    CheckpointTable,
    EvalTable,
    LearnerConfig,
    ModelTable,
    RolloutTable,
    RunTable,
    SelectorTable,
    SwarmTable,
    Table,
    TrackingTable,
    TrainerTable,
)

__all__ = [
    "CheckpointTable",
    "EvalTable",
    "LearnerConfig",
    "ModelTable",
    "RolloutTable",
    "RunTable",
    "SelectorTable",
    "SwarmTable",
    "Table",
    "TrackingTable",
    "TrainerTable",
]
