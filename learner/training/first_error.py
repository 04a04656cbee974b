"""Of several errors that came together, the one to tell."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from echo2swarm.network.serving import leaves
from echo2swarm.system.errors import SwarmError
from learner.training.trainer_client import TrainerLostError


@contextmanager
def one_error_at_a_time() -> Iterator[None]:
    """Raise, of several errors that came together, the one that says most."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors = sorted(leaves(group), key=_importance)
        raise errors[0] from (None if len(errors) == 1 else group)


def _importance(exc: BaseException) -> int:
    match exc:
        case KeyboardInterrupt():
            return 0
        case TrainerLostError():
            return 2
        case SwarmError():
            return 3
        case trio.Cancelled():
            return 4
        case _:
            return 1  # a bug
