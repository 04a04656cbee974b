"""An engine that says, once the node has joined, that it can't work on this machine."""

import time

from echo2swarm.children.worker import serve
from echo2swarm.errors import SwarmError
from node.engine.messages import EngineCall


def handle(_call: object, _on_progress: object) -> None:
    time.sleep(1)
    raise SwarmError("no such device; choose another")


if __name__ == "__main__":
    serve(EngineCall, handle)  # type: ignore[arg-type]
