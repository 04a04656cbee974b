"""Dispatch, without I/O: who samples what, until when, what became of it, and what is trained on.

The learner performs what this decides; whoever simulates a swarm runs the same code on
virtual time.
"""
