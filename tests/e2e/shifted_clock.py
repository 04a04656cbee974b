"""A program on a machine whose clock is wrong: ``python -m ... SECONDS MODULE ARGUMENTS``.

What the program starts has the right time.
"""

import runpy
import sys
import time

_right_time, _right_time_ns = time.time, time.time_ns


def main() -> None:
    """Run the module as if it were called by itself."""
    shift_s, module, *arguments = sys.argv[1:]
    shift_ns = round(float(shift_s) * 1e9)
    time.time = lambda: _right_time() + shift_ns / 1e9
    time.time_ns = lambda: _right_time_ns() + shift_ns
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
