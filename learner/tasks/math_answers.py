"""Whether two answers are the same mathematics: math-verify, without its clock.

The library limits its time with SIGALRM, once for each step. The scorer has one
such limit around all of a completion already, so those of the library are off.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from echo2swarm.errors import ConfigError
from echo2swarm.extras import install_extra

MATH_PACKAGES: Final = ("math-verify", "latex2sympy2-extended", "sympy")
"""What decides whether two answers are the same."""


def math_verifier() -> Callable[[str, str], bool]:
    """Return a function of the right answer and a completion: whether they agree.

    It raises :class:`ValueError` where the right answer itself can't be read.
    """
    try:
        # Half a second to import, and not installed everywhere.
        from math_verify import parse, verify  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f'task.score = "math" needs a package; {install_extra("learner")}'
        ) from None
    # It would warn that its own limit is off.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)

    @lru_cache(maxsize=1024)
    def parsed(answer: str) -> list[Any]:
        # Data sets hold bare LaTeX, which is only taken for it between dollar signs: without them,
        # `3, 4` would be 4. An answer that is a sentence brings its own.
        for text in (f"${answer}$", answer):
            found = parse(text, fallback_mode="no_fallback", parsing_timeout=None)
            if found:
                return list(found)
        raise ValueError(f"can't read the right answer {answer!r} as mathematics")

    def agree(answer: str, completion: str) -> bool:
        written = parse(completion, parsing_timeout=None)
        return bool(verify(parsed(answer), written, timeout_seconds=None))

    return agree
