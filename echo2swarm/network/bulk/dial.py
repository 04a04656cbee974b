"""Making a TLS connection to one of several addresses, to whoever has a certain certificate."""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from echo2swarm.network.bulk import tls
from echo2swarm.network.bulk.socket import BrokenError, TlsSocket
from protocols.bulk import DialTarget

DIAL_S: Final = 3.0
MAX_DIALS: Final = 6
STAGGER_S: Final = 0.2
"""An address gets this much of a start over the next one."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where TCP can go."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Caller:
    """Who decides about dials, and hears what came of them; all by multiaddress."""

    begin: Callable[[str], bool]
    """Whether a dial may be made now; it is counted then."""
    reached: Callable[[str], None]
    failed: Callable[[str], None]


def place_of(address: str) -> TcpAddress | None:
    """Return where a multiaddress leads, if that is a plain TCP port."""
    match address.split("/"):
        case ["", "ip4" | "ip6" | "dns" | "dns4" | "dns6", host, "tcp", port] if (
            host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
        ):
            return TcpAddress(host, int(port))
        case _:
            return None


async def dial(
    addresses: Sequence[str],
    entrance: DialTarget,
    context: ssl.SSLContext,
    threads: trio.CapacityLimiter,
    caller: Caller,
) -> TlsSocket | None:
    """Return a connection through ``entrance``, its token shown; None if no address has it.

    The token is shown to nobody but the holder of the certificate.
    """
    found: list[TlsSocket] = []

    async def attempt(where: str, place: TcpAddress, after_s: float) -> None:
        await trio.sleep(after_s)
        if not caller.begin(where):
            return
        try:
            connection = await _connect(place, entrance.certificate_sha256, context, threads)
        except (BrokenError, OSError):
            caller.failed(where)
            return  # Another address may do.
        caller.reached(where)
        found.append(connection)
        nursery.cancel_scope.cancel()

    is_done = False
    try:
        with trio.move_on_after(DIAL_S):
            async with trio.open_nursery() as nursery:
                places = {place: where for where in addresses if (place := place_of(where))}
                for number, (place, where) in enumerate(tuple(places.items())[:MAX_DIALS]):
                    nursery.start_soon(attempt, where, place, number * STAGGER_S)
        if not found:
            return None
        await found[0].send(entrance.token)
        is_done = True
    except BrokenError:
        return None
    finally:
        for connection in found[is_done:]:
            connection.cut()
    return found[0]


async def _connect(
    place: TcpAddress,
    certificate_sha256: bytes,
    context: ssl.SSLContext,
    threads: trio.CapacityLimiter,
) -> TlsSocket:
    stream = await trio.open_tcp_stream(place.host, place.port)
    connection = TlsSocket(stream, context, is_accepting=False, threads=threads)
    is_good = False
    try:
        await connection.shake_hands()
        if not tls.is_ours(connection.ssl):
            raise BrokenError("speaks another protocol")
        if not tls.is_named(connection.ssl, certificate_sha256):
            raise BrokenError("shows another certificate")
        is_good = True
    finally:
        if not is_good:
            connection.cut()
    return connection
