"""A kind of task for ECHO-2 swarm: sort digits, the largest first."""
