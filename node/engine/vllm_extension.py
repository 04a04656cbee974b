"""What is added to vLLM's workers, which are processes of their own."""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


class EndsWithParent:
    """A worker that does not outlive the process that started it, however that one ends."""

    def end_with_parent(self) -> None:
        """Ask the kernel to kill this process when its parent has died."""
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we had asked
            os.kill(os.getpid(), signal.SIGKILL)
