"""Which nodes to activate: the cheapest set that keeps the learner busy.

The learner while it runs, ``swarm plan`` before, and ``swarm simulate`` instead, all ask here.
"""

from echo2swarm.scheduling.selection.offers import (
    Addition,
    Limits,
    Need,
    NodeOffer,
    OfferDecision,
    Selection,
    Shortfall,
    effective,
)
from echo2swarm.scheduling.selection.select import Effort, select

__all__ = [
    "Addition",
    "Effort",
    "Limits",
    "Need",
    "NodeOffer",
    "OfferDecision",
    "Selection",
    "Shortfall",
    "effective",
    "select",
]
