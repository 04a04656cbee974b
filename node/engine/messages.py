"""What the node asks of its engine process, see :mod:`echo2swarm.processes.engine_messages`."""

from echo2swarm.processes.engine_messages import (
    Completion,
    Describe,
    Description,
    EngineCall,
    Generate,
    Generated,
    LoadPolicy,
    PolicyLoaded,
)

__all__ = [
    "Completion",
    "Describe",
    "Description",
    "EngineCall",
    "Generate",
    "Generated",
    "LoadPolicy",
    "PolicyLoaded",
]
