"""Errors whose own words don't help get a remedy."""

import pytest

from node.remedies import remedy_for


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("engine transformers was killed by SIGKILL; its log: x", "--max-batch"),
        ("engine: OutOfMemoryError: CUDA out of memory. Tried to allocate", "--max-batch"),
        ("killed by SIGABRT (last line: what(): std::bad_alloc)", "too little memory"),
        ("DefaultCPUAllocator: can't allocate memory: you tried", "too little memory"),
        ("ImportError: x.so: failed to map segment from shared object", "too little memory"),
        ("abc opens no stream for /echo2/heartbeat/1.4.0: StreamFailure", "another version"),
        ("abc opens no stream for /echo2/heartbeat/1.4.0: StreamFailure", "is starting"),
        ("not a valid HeartbeatReply: Object contains unknown field `x`", "another version"),
        (
            "can't reach peer 12D3: /ip4/203.0.113.9/tcp/4150: Connection refused",
            "the run is finished or stopped",
        ),
        ("The NVIDIA driver on your system is too old", "driver"),
        ("cannot write a chunk: No space left on device", "--state-dir"),
    ],
)
def test_a_known_trouble_has_a_remedy(error: str, says: str) -> None:
    assert says in remedy_for(error)


def test_nothing_is_invented_for_what_is_unknown() -> None:
    assert remedy_for("it exited with status 3") == ""
