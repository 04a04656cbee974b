"""A virtual clock and worker threads do not go together: the clock jumps while threads work."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import trio

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _work_inline_on_a_virtual_clock(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "autojump_clock" not in request.fixturenames:
        return

    async def run_sync(
        fn: Callable[..., T],
        *args: object,
        limiter: trio.CapacityLimiter | None = None,
        **_: object,
    ) -> T:
        async with limiter or trio.CapacityLimiter(1):
            return fn(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
