"""The tiny model of the tests; see :mod:`echo2swarm.models.tiny`."""

from pathlib import Path

TINY_MODEL_DIR = Path(__file__).parent / "data" / "tiny-sorter"
"""For ``model.path``. Asked ``312=`` it should say ``123`` and EOS, and does so half the time."""
