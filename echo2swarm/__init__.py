"""What every participant of a swarm shares: network, weights, identity, child processes, status.

The applications are ``node`` (``echo2-node``) and ``learner`` (``echo2-learner``);
what travels between participants is ``protocols``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:
    # Hidden from type checkers, which would take any name for an attribute of this module.
    def __getattr__(name: str) -> str:
        # Looked up when asked for: reading the metadata of a distribution takes milliseconds.
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("echo2swarm")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
