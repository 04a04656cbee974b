"""What keeps a node from working, in words that may leave this machine."""

import re
from collections.abc import Mapping
from typing import Final

from echo2swarm.humane import printable
from protocols.activation import MAX_TROUBLE_CHARS, Trouble, TroubleKind

_PATH: Final = re.compile(r"(?<![\w:/\\])(?:[A-Za-z]:|~)?(?:[/\\]+[^\s/\\:'\"]+){2,}")
_ORDER: Final = (TroubleKind.ENGINE, TroubleKind.APPLY, TroubleKind.SAMPLE, TroubleKind.FETCH)
"""The first of them is told: it explains the others."""


def trouble_of(errors: Mapping[TroubleKind, str]) -> Trouble | None:
    """Return what to tell the learner of errors that are not over; None if there are none.

    Everybody may read it in the run's status: of paths, which name users and folders, only the
    last part is told.
    """
    for kind in _ORDER:
        if error := errors.get(kind, ""):
            return Trouble(kind, printable(_without_folders(error), max_chars=MAX_TROUBLE_CHARS))
    return None


def _without_folders(text: str) -> str:
    return _PATH.sub(lambda found: re.split(r"[/\\]", found[0])[-1], text)
