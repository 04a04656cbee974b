"""``python -m echo2swarm.models.prepare PATH``: print the folder of a model, made ready.

A process of its own, so that the memory that a conversion takes is given back,
and a swarm process loads no model library. Progress goes to standard error. With ``--no-fetch``
nothing is made ready: the line is empty if the model is not on this machine.
"""

import sys
from typing import Final, NoReturn

from echo2swarm.models.resolve import find_model, resolve_model
from echo2swarm.system.errors import SwarmError, UsageError

NO_FETCH: Final = "--no-fetch"
_MODULE: Final = "echo2swarm.models.prepare"


def main(arguments: list[str]) -> int:
    """Resolve the model that the last argument names."""
    no_fetch = arguments[:1] == [NO_FETCH]
    arguments = arguments[1:] if no_fetch else arguments
    if len(arguments) != 1:
        _say(f'usage: python -m {_MODULE} [{NO_FETCH}] FOLDER | HUB_ID | "embedded"')
        return 2
    try:
        folder = find_model(arguments[0]) if no_fetch else resolve_model(arguments[0], _say)
    except SwarmError as exc:
        _say(f"error: {exc}")
        return 2 if isinstance(exc, UsageError) else 1
    sys.stdout.write(f"{folder or ''}\n")
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
