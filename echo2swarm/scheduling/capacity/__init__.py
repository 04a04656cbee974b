"""How much rollout throughput a run needs, what it would do with what it has, and why.

The learner while it runs, ``swarm plan`` before, and ``swarm simulate`` instead, all ask here.
"""

from echo2swarm.scheduling.capacity.estimates import (
    RecentValues,
    RunningEstimate,
    percentile_95,
    prior,
)
from echo2swarm.scheduling.capacity.explain import explain_pace
from echo2swarm.scheduling.capacity.model import (
    BindingLimit,
    Delays,
    Forecast,
    LearnerLoad,
    forecast,
    max_publish_every,
    min_staleness,
    paper_rollouts_per_s,
    provisioned_rollouts_per_s,
    required_rollouts_per_s,
    stale_share,
)

__all__ = [
    "BindingLimit",
    "Delays",
    "Forecast",
    "LearnerLoad",
    "RecentValues",
    "RunningEstimate",
    "explain_pace",
    "forecast",
    "max_publish_every",
    "min_staleness",
    "paper_rollouts_per_s",
    "percentile_95",
    "prior",
    "provisioned_rollouts_per_s",
    "required_rollouts_per_s",
    "stale_share",
]
