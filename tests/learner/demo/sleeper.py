"""A program that waits to be interrupted; or does not care; or leaves a child behind."""

import signal
import subprocess
import sys
import time


def main() -> None:
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "--with-child" in sys.argv:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
    print("ready", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
