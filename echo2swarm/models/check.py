"""``python -m echo2swarm.models.check FOLDER``: load a model as a trainer would.

Exit status 2, and a line on standard error, if that does not work.
A process of its own, so that the memory for the weights is given back.
"""

import logging
import sys
from pathlib import Path
from typing import NoReturn

from echo2swarm.system.errors import ConfigError


def main(arguments: list[str]) -> int:
    """Load the model in the folder that the only argument names."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m echo2swarm.models.check FOLDER\n")
        return 2
    logging.disable(logging.CRITICAL)  # the last line is what is wrong
    from echo2swarm.models.loading import load_causal_lm  # noqa: PLC0415 - takes seconds

    try:
        # As it is in the files: checking takes no more memory than it must.
        load_causal_lm(Path(arguments[0]), dtype="auto")
    except ConfigError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 2
    return 0


def _run() -> NoReturn:
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _run()
