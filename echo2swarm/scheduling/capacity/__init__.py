"""How much rollout throughput a run needs, what it would do with what it has, and why.

The learner while it runs, ``swarm plan`` before, and ``swarm simulate`` instead, all ask here.
"""

from echo2swarm.scheduling.capacity.estimates import Estimate, RecentValues, percentile_95, prior
from echo2swarm.scheduling.capacity.model import (
    Binds,
    Delays,
    Forecast,
    Workload,
    forecast,
    max_publish_every,
    min_staleness,
    paper_rollouts_per_s,
    provisioned_rollouts_per_s,
    required_rollouts_per_s,
    stale_share,
)
from echo2swarm.scheduling.capacity.explain import explain

__all__ = [
    "Binds",
    "Delays",
    "Estimate",
    "Forecast",
    "RecentValues",
    "Workload",
    "explain",
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
