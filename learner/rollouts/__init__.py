"""Performs what :mod:`echo2swarm.scheduling.leases` decides: on record, on the wire, in the log."""
