import os
import signal

import pytest
import trio
import trio.lowlevel

from learner.demo.signals import until_signal


async def test_work_that_is_left_alone_returns_its_result() -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert await until_signal(work, on_signal=lambda: None) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_work_and_is_an_interrupt(number: signal.Signals) -> None:
    told: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt), trio.fail_after(60):
        await until_signal(work, on_signal=lambda: told.append("ending"))

    assert told == ["ending"]


async def test_cleaning_up_is_not_cut_short_by_a_second_signal() -> None:
    told: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                os.kill(os.getpid(), signal.SIGINT)
                await trio.sleep(0.05)
                told.append("cleaned up")

    with pytest.raises(KeyboardInterrupt), trio.fail_after(60):
        await until_signal(work, on_signal=lambda: told.append("ending"))

    assert told == ["ending", "cleaned up"]
