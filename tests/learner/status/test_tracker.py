from collections.abc import Callable

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from learner.status.tracker import MAX_QUEUED, CurveWriter


class Curves:
    """Keeps points, and fails when told to."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.fails: Callable[[int], bool] = lambda _: False
        self.is_closed = False

    def write(self, scalars: dict[str, float], *, step: int, unix_s: float) -> None:
        if self.fails(step):
            raise OSError("disk full")
        assert unix_s == step
        self.points.append((step, scalars))

    def close(self) -> None:
        self.is_closed = True


def line(step: int) -> dict[str, float]:
    return {"step": step, "unix_s": float(step), "reward_mean": 0.5}


async def test_lines_become_points_in_order_also_those_queued_at_the_end() -> None:
    curves = Curves()
    tracker = CurveWriter(curves)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracker.run)
        for step in (1, 2, 3):
            tracker.note(line(step))
        nursery.cancel_scope.cancel()
    assert curves.points == [(step, {"run/reward_mean": 0.5}) for step in (1, 2, 3)]
    assert curves.is_closed


async def test_a_line_that_is_taken_from_the_queue_when_the_end_comes_is_not_lost() -> None:
    curves = Curves()
    tracker = CurveWriter(curves)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracker.run)
        await trio.testing.wait_all_tasks_blocked()
        tracker.note(line(1))
        nursery.cancel_scope.cancel()
    assert [step for step, _ in curves.points] == [1]


async def test_a_line_that_comes_after_the_end_does_no_harm() -> None:
    curves = Curves()
    tracker = CurveWriter(curves)
    with trio.CancelScope() as scope:
        scope.cancel()
        await tracker.run()
    tracker.note(line(1))
    assert curves.points == []


async def test_a_line_about_no_update_has_no_point() -> None:
    curves = Curves()
    tracker = CurveWriter(curves)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tracker.run)
        tracker.note({"unix_s": 1.0, "reward_mean": 0.5})
        nursery.cancel_scope.cancel()
    assert curves.points == []


async def test_a_tool_that_fails_loses_points_tells_so_once_and_goes_on() -> None:
    curves = Curves()
    curves.fails = lambda step: step in (1, 2)
    tracker = CurveWriter(curves)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tracker.run)
            for step in (1, 2, 3):
                tracker.note(line(step))
            nursery.cancel_scope.cancel()
    assert [step for step, _ in curves.points] == [3]
    assert [(entry["event"], entry["why"]) for entry in logs] == [
        ("tracking.points_lost", "disk full")
    ]


async def test_a_full_queue_drops_lines_and_holds_nobody_up(
    autojump_clock: MockClock,
) -> None:
    curves = Curves()
    tracker = CurveWriter(curves)
    with capture_logs() as logs:
        for step in range(MAX_QUEUED + 5):
            tracker.note(line(step))
    assert len(logs) == 1
    with trio.CancelScope() as scope:
        scope.cancel()
        await tracker.run()
    assert len(curves.points) == MAX_QUEUED


@pytest.mark.parametrize("num_noted", [0, 1])
async def test_it_ends_when_cancelled(num_noted: int, autojump_clock: MockClock) -> None:
    curves = Curves()
    tracker = CurveWriter(curves)
    with trio.move_on_after(0.01):
        for step in range(num_noted):
            tracker.note(line(step))
        await tracker.run()
    assert len(curves.points) == num_noted
    assert curves.is_closed
