"""``python -m echo2swarm.models.prepare PATH``: print the folder of a model, made ready.

A process of its own, so that the memory that a conversion takes is given back,
and a swarm process loads no model library. Progress goes to standard error.
"""

import sys
from typing import NoReturn

from echo2swarm.errors import SwarmError, UsageError
from echo2swarm.models.resolve import resolve_model


def main(arguments: list[str]) -> int:
    """Resolve the model that the only argument names."""
    if len(arguments) != 1:
        _say('usage: python -m echo2swarm.models.prepare FOLDER | HUB_ID | "embedded"')
        return 2
    try:
        folder = resolve_model(arguments[0], _say)
    except SwarmError as exc:
        _say(f"error: {exc}")
        return 2 if isinstance(exc, UsageError) else 1
    sys.stdout.write(f"{folder}\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _run() -> NoReturn:
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _run()
