"""Tasks: what the model is asked, and how its answers are scored.

The port is in :mod:`learner.tasks.base`, the built-in kinds are one module each,
and :mod:`learner.tasks.registry` finds them by name. Task code runs in the
scorer's process only; the page for run owners is ``docs/tasks.md``.
"""
