"""What a contributor can do about errors whose own words don't say; by what is in those words."""

import re
from typing import Final

_REMEDIES: Final = (
    (
        r"out of memory|OutOfMemory|CUDA OOM|MemoryError|SIGKILL|[Cc]an(no|')t allocate memory"
        r"|bad_alloc|failed to map segment|[Mm]emory allocation",
        "probably too little memory: a smaller --max-batch, another --device, fewer other programs",
    ),
    (
        r"opens no stream for /echo2/",
        "the learner is starting, or starting its trainer again, or runs another version of "
        "echo2swarm: wait some minutes, then install the same here",
    ),
    (
        r"not a valid \w+: Object contains unknown field",
        "the learner seems to run another version of echo2swarm: install the same here",
    ),
    (
        r"can't reach peer .*[Cc]onnection refused",
        "nobody listens there: the run is finished or stopped, or not started yet; its owner knows",
    ),
    (r"driver.*(insufficient|too old)|CUDA driver", "update the GPU's driver, or use --device cpu"),
    (r"No space left|no space left", "free some space, or name another disk with --state-dir"),
)


def remedy_for(error: str) -> str:
    """Return what to do about an error; empty if nothing is known."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, error):
            return remedy
    return ""
