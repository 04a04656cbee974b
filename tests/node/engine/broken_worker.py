"""An engine that says, once a file is there, that it can't work on this machine."""

import os
import time
from pathlib import Path

from echo2swarm.processes.worker import serve_parent
from echo2swarm.system.errors import SwarmError
from node.engine.messages import EngineCall


def handle(_call: object, _on_progress: object) -> None:
    while not Path(os.environ["BREAK_WHEN"]).exists():
        time.sleep(0.02)
    raise SwarmError("no such device; choose another")


if __name__ == "__main__":
    serve_parent(EngineCall, handle)  # type: ignore[arg-type]
