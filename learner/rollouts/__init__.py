"""Performs what :mod:`echo2swarm.dispatch` decides: on record, on the wire, in the log."""
