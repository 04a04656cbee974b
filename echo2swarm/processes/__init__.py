"""Child processes: whatever computes lives in one, and may die without its parent.

:mod:`echo2swarm.processes.parent` runs in the swarm process, under trio;
:mod:`echo2swarm.processes.worker` runs in the child, and is blocking code.
They speak frames of msgpack over a socket pair; specification:
``docs/specs/children.md``.
"""
