"""Whether two answers are the same mathematics: math-verify, without its clock.

The library limits its time with SIGALRM, once for each step. The scorer has one
such limit around all of a completion already, so those of the library are off.

What of a completion would be computed is looked at before the library computes it: strangers
write completions, and a few tokens are enough to keep it busy for hours.
"""

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from echo2swarm.system.errors import ConfigError
from echo2swarm.system.extras import install_extra
from learner.tasks.base import RefusedAnswerError
from learner.tasks.math_bounds import why_too_costly

_PARSERS: Final = ("parse_latex_cached", "parse_expr_cached")
"""What in the library reads one expression, which it has found in a completion, and computes."""

MATH_PACKAGES: Final = ("math-verify", "latex2sympy2-extended", "sympy")
"""What decides whether two answers are the same."""


def math_verifier() -> Callable[[str, str], bool]:
    """Return a function of the right answer and a completion: whether they agree.

    It raises :class:`ValueError` where the right answer itself can't be read, and
    :class:`~learner.tasks.base.RefusedAnswerError` where the completion's is too costly to compute.
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
        with _bounded() as faults:
            written = parse(completion, parsing_timeout=None)
        if faults:
            raise RefusedAnswerError(f"too costly to compute: {faults[0]}")
        return bool(verify(parsed(answer), written, timeout_seconds=None))

    return agree


@contextmanager
def _bounded() -> Iterator[list[str]]:
    """Keep the library from computing what is too costly; yields why it was kept from it."""
    module = importlib.import_module("math_verify.parser")
    originals = {name: getattr(module, name) for name in _PARSERS}
    faults: list[str] = []

    def bounded(original: Callable[[str], Any]) -> Callable[[str], Any]:
        def read(expression: str) -> Any:  # noqa: ANN401  # whatever the library makes of it
            fault = why_too_costly(expression)
            if fault is not None:
                faults.append(fault)
                raise ValueError(fault)  # which the library takes for text that it can't read
            return original(expression)

        return read

    try:
        for name, original in originals.items():
            setattr(module, name, bounded(original))
        yield faults
    finally:
        for name, original in originals.items():
            setattr(module, name, original)
