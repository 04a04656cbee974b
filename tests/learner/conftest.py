"""What several tests of the learner need."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import trio

T = TypeVar("T")


@pytest.fixture
def inline_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what threads would do at once: a virtual clock does not wait for real threads."""

    async def run_sync(work: Callable[..., T], *args: object, **_options: object) -> T:
        await trio.lowlevel.checkpoint()
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
