"""The process that makes one attack: ``python -m benchmarks.attacks.attacker ORDER.json``.

It ends by itself after the time it was given, and at once when whoever started it is gone.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec
import trio

from benchmarks.attacks.registry import attack_of
from benchmarks.attacks.scene import Order, Scene
from echo2swarm.system.files import write_atomically
from echo2swarm.system.logging import configure_logging

LOOK_S: Final = 0.5
BEGIN_S: Final = 0.05


async def attack(order: Order) -> None:
    """Make the attack that is ordered, and write down what was done."""
    scene = Scene(order)
    order.is_ready.touch()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with_parent, scope)
            nursery.start_soon(_end_on_signal, scope)
            while not order.may_begin.exists():  # noqa: ASYNC110 - it is a file
                await trio.sleep(BEGIN_S)
            scene.begin()
            scope.deadline = trio.current_time() + order.seconds
            nursery.start_soon(attack_of(order.attack).run, scene)
    write_atomically(Path(order.report), msgspec.json.encode(scene.tally()), is_durable=False)


async def _end_with_parent(scope: trio.CancelScope) -> None:
    parent = os.getppid()
    # There is no event for it.
    while os.getppid() == parent:  # noqa: ASYNC110
        await trio.sleep(LOOK_S)
    scope.cancel()


async def _end_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as numbers:
        async for _ in numbers:
            scope.cancel()


if __name__ == "__main__":
    configure_logging(quiet=True)
    trio.run(attack, msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order))
