"""`swarm report`: what a run directory shows of a run, as text, JSON and plots."""
