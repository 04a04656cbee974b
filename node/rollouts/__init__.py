"""Rollouts on a node: leases, the workload in hand, sampling and submission."""
