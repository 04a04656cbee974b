"""What can go wrong on this machine; messages say what, where and what to do.

Only the command-line entry points turn these into text and an exit status.
"""


class SwarmError(Exception):
    """Something on our side went wrong, and the message says what to do about it."""


class UsageError(SwarmError):
    """The command was called wrongly: exit status 2."""


class ConfigError(UsageError):
    """A configuration is not valid; the message names the key."""


class StoreError(SwarmError):
    """Files on disk are missing, damaged, or can't be written."""


class DiskFullError(StoreError):
    """There is no room left: what was not written may be tried again when there is."""


class DoesNotFitError(StoreError):
    """What is wanted is larger than what its owner lets it take."""


class ChildError(SwarmError):
    """A child process (engine, trainer, scorer) died, hung or answered with an error.

    Attributes:
        error: the name of the error it answered with; empty if it died or hung, which is when
            it must be started anew.
    """

    def __init__(self, message: str, *, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class NetworkError(SwarmError):
    """A peer can't be reached, or a connection to it broke."""
