"""A node and its owner, on one machine: what it does, and orders, over a local socket.

Specification: ``docs/specs/control.md``.
"""
