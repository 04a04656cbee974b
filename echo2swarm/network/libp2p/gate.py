"""The last gate before a TCP connection of libp2p's: our own dials and the library's alike.

The library connects to whomever its look-ups and its peers name. All of it goes through the
transport, and the transport asks here.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import trio
from libp2p.transport.exceptions import OpenConnectionError
from multiaddr import Multiaddr

from echo2swarm.network.admission.dial_policy import DialPolicy, Target, target_of
from protocols.ids import PeerId

_LIBRARY: Final = "the library"
_FAMILIES: Final = {
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}
_told_by: ContextVar[str] = ContextVar("told_by", default=_LIBRARY)


class Gate:
    """Lets dials through, as the policy decides."""

    def __init__(self, policy: DialPolicy) -> None:
        self.policy = policy

    @contextmanager
    def naming(self, told_by: str) -> Iterator[None]:
        """What is dialled in this context was named by ``told_by``."""
        token = _told_by.set(told_by)
        try:
            yield
        finally:
            _told_by.reset(token)

    @contextmanager
    def passage(self, maddr: Multiaddr) -> Iterator[str]:
        """Yield the address to connect to, without the ``/p2p/`` part.

        Raises:
            OpenConnectionError: it must not be dialled, or not now.
        """
        where, _, name = str(maddr).partition("/p2p/")
        peer = PeerId(name) if name else None
        why = self.policy.begin(peer, where, told_by=_told_by.get(), now_s=trio.current_time())
        if why:
            raise OpenConnectionError(f"not dialled: {why}")
        try:
            yield where
        except BaseException:
            self.policy.failed(peer, where)
            raise

    def led_to(self, where: str, target: Target) -> None:
        """Note where a name led that was dialled; only the run's owner can have given it."""
        if target_of(where) is None:
            self.policy.found_at(target)


async def resolve(where: str) -> tuple[Target, ...]:
    """Return where a multiaddress leads; a name is resolved as this system does it.

    Raises:
        OSError: the system knows no such name.
    """
    if (target := target_of(where)) is not None:
        return (target,)
    match where.split("/"):
        case ["", family, name, "tcp", port] if family in _FAMILIES and port.isdecimal():
            found = await trio.socket.getaddrinfo(
                name, int(port), family=_FAMILIES[family], type=socket.SOCK_STREAM
            )
            return tuple(dict.fromkeys(Target(str(each[4][0]), int(port)) for each in found))
        case _:
            raise OSError(f"{where} is no address of the form /ip4/HOST/tcp/PORT")
