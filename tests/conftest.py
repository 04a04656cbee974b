"""What holds for all tests."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import trio
from hypothesis import HealthCheck, settings

T = TypeVar("T")

# No test may depend on how fast this machine is.
settings.register_profile(
    "no_clock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("no_clock")


@pytest.fixture(autouse=True)
def _no_threads_on_a_virtual_clock(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Do at once what threads would do: a virtual clock jumps on while they work."""
    if "autojump_clock" not in request.fixturenames:
        return

    async def run_sync(
        work: Callable[..., T],
        *args: object,
        limiter: trio.CapacityLimiter | None = None,
        **_options: object,
    ) -> T:
        async with limiter or trio.CapacityLimiter(1):
            return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
