"""Rates and phases, as the learner uses them; a simulated learner uses the same."""

from echo2swarm.rates import Phase, Timeline, WindowSum, WorkingRate

__all__ = ["Phase", "Timeline", "WindowSum", "WorkingRate"]
