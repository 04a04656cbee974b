import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
from echo2swarm.system.allocator import keep_heap_small
if sys.argv[1] == "limited":
    if not keep_heap_small():
        sys.exit(3)
kept = []
def work():
    kept.append([bytes(1000) for _ in range(1000)])
    together.wait()
together = threading.Barrier(16)
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
# Heaps beside the first begin where 64 MB do, and are mapped as such.
starts = [line.split("-")[0] for line in open("/proc/self/maps")]
print(sum(int(start, 16) % (64 << 20) == 0 for start in starts))
"""


def num_heaps(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == 3:
        pytest.skip("this C library has no arenas")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_threads_share_few_heaps() -> None:
    assert num_heaps("limited") < num_heaps("as usual")
