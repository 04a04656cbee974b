"""Name the word that was probably meant."""

import difflib
from collections.abc import Iterable
from typing import Final

_MAX_LISTED: Final = 12


def suggest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown ``word``: what to write instead.

    The nearest of the ``known`` words if one is near; else all of them, or as many as
    fit in a line.
    """
    words = sorted(set(known))
    if near := difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6):
        return f'; did you mean "{near[0]}"?'
    if not words:
        return ""
    listed = ", ".join(words[:_MAX_LISTED])
    return f"; there is {listed}{', ...' if len(words) > _MAX_LISTED else ''}"
