"""What an attack is given: whom it attacks, from where, for how long; and where it counts.

An attack runs in a process of its own (:mod:`benchmarks.attacks.attacker`), at the lowest
priority, so that what it costs itself is not taken for what it does to others.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import trio

from benchmarks.attacks.wire import Target, Wire, new_identity, open_wire
from echo2swarm.errors import NetworkError
from echo2swarm.identity import Identity
from echo2swarm.network.addresses import split_address
from protocols import ticket as ticket_protocol
from protocols.errors import RemoteProtocolError

ONE_SOURCE: Final = "127.66.0.1"
"""The one address from which half of all identities come, or all."""
NUM_SOURCES: Final = 60
"""Other addresses, each in a network of its own, from which the rest come."""
AGAIN_S: Final = 0.5
"""Before who was turned away comes again."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one attacker process is to do."""

    attack: str
    """Its name in the registry."""
    ticket: str
    seconds: float
    report: str
    """The file into which the tally is written at the end."""
    sources: str = "mixed"
    """``one`` address, ``many``, or half of the identities each: ``mixed``."""
    num_identities: int = 60
    per_s: float = 0.0
    """How many deeds are planned each second."""
    victim: str = ""
    """A multiaddress at which somebody counts who connects."""
    nodes: tuple[str, ...] = ()
    """Where the honest nodes listen, with ``/p2p/PEER``."""

    @property
    def is_ready(self) -> Path:
        """A file that the attacker makes when all is imported, and it could begin."""
        return Path(self.report).with_suffix(".ready")

    @property
    def may_begin(self) -> Path:
        """A file for which the attacker waits."""
        return Path(self.report).with_suffix(".begin")


class Tally(msgspec.Struct, kw_only=True):
    """What an attacker process did."""

    num_tried: int = 0
    """Deeds: connections, streams or messages, whatever became of them."""
    num_planned: int = 0
    cpu_s: float = 0.0
    notes: dict[str, int] = {}
    """What became of them."""


class Scene:
    """The run under attack, as an attacker sees it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.ticket = ticket_protocol.read(order.ticket, now_unix_s=time.time())
        self.learner = target_of(self.ticket.addresses[0])
        self.nodes = tuple(target_of(address) for address in order.nodes)
        self.num_tried = 0
        self.notes: Counter[str] = Counter()
        self._next_s = 0.0
        self._cpu_s = 0.0

    def begin(self) -> None:
        """From now on, keep the pace and count the processor's time."""
        self._next_s = trio.current_time()
        self._cpu_s = time.process_time()

    def source(self, index: int) -> str:
        """Return the address from which an identity comes; all are of this machine."""
        if self.order.sources == "one" or (self.order.sources == "mixed" and index % 2 == 0):
            return ONE_SOURCE
        number = index % NUM_SOURCES
        return f"127.{70 + number}.{number}.{1 + number}"

    async def turn(self) -> None:
        """Wait for the next deed, of so many each second over all tasks; counts it."""
        now_s = trio.current_time()
        # Who was held up does not make up for it in a burst of more than half a second.
        at_s = self._next_s = max(self._next_s + 1 / self.order.per_s, now_s - 0.5)
        await trio.sleep_until(at_s)
        self.num_tried += 1

    def tried(self) -> None:
        """Count a deed that no pace is kept for."""
        self.num_tried += 1

    @asynccontextmanager
    async def connection(
        self, index: int, identity: Identity | None = None, *, to: Target | None = None
    ) -> AsyncIterator[Wire]:
        """Connect as the identity of this number, a new one unless it is given."""
        async with open_wire(
            to or self.learner, identity or new_identity(), source=self.source(index)
        ) as wire:
            yield wire

    async def crowd(self, act: Callable[[int], Awaitable[None]]) -> None:
        """Let each identity act; who is turned away comes again, until the attack is over."""

        async def again_and_again(index: int) -> None:
            while True:
                try:
                    await act(index)
                except* (NetworkError, RemoteProtocolError, OSError) as caught:
                    self.notes[_kind_of(caught)] += 1
                await trio.sleep(AGAIN_S)

        async with trio.open_nursery() as nursery:
            for index in range(self.order.num_identities):
                nursery.start_soon(again_and_again, index)
                await trio.sleep(0.02)

    def tally(self) -> Tally:
        """Return what was done."""
        return Tally(
            num_tried=self.num_tried,
            num_planned=round(self.order.per_s * self.order.seconds),
            cpu_s=time.process_time() - self._cpu_s,
            notes=dict(self.notes.most_common(20)),
        )


def target_of(address: str) -> Target:
    """Return whom a multiaddress with ``/p2p/PEER`` names, and where it listens."""
    peer, where = split_address(address)
    _, _, host, _, port = where.split("/")[:5]
    return Target(peer, host, int(port))


def _kind_of(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return str(exc)[:80]
