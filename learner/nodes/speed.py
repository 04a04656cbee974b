"""How fast nodes are and how often they are there; a simulated learner measures the same."""

from echo2swarm.selection.speed import Presence, Speed, SpeedMeter

__all__ = ["Presence", "Speed", "SpeedMeter"]
