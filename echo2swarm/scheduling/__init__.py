"""Scheduling, without I/O: staleness, leases, capacity and the selection of nodes."""
