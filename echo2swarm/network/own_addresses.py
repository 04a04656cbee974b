"""Whether the addresses that an owner typed can be listened on, or dialled by others.

What is wrong with them shows far away otherwise: in a ticket that nobody can use.
"""

import ipaddress
import socket
from collections.abc import Iterable
from typing import Final

from echo2swarm.network.admission.dial_policy import MIN_PORT, Kind, kind_of, target_of
from echo2swarm.system.errors import NetworkError, UsageError

_NAMES: Final = {
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}


def check_listen(address: str) -> None:
    """Do nothing if a socket may listen at a multiaddress.

    Raises:
        UsageError: it is of another form.
    """
    match address.split("/"):
        case ["", ("ip4" | "ip6") as family, host, "tcp", port] if _is_port(port, least=0):
            if _is_ip(host, family):
                return
        case _:
            pass
    raise UsageError(f'expected addresses like /ip4/0.0.0.0/tcp/4150, got "{address}"')


def check_advertised(address: str, *, by_node: bool = False) -> None:
    """Do nothing if others can make sense of a multiaddress; a name is not looked up yet.

    Args:
        address: what an owner typed.
        by_node: whether a node says so of itself: others dial no port below 1024 then.

    Raises:
        UsageError: nobody can dial it; the message says why.
    """
    least = MIN_PORT if by_node else 1
    match address.split("/"):
        case ["", ("ip4" | "ip6") as family, host, "tcp", port] if _is_ip(host, family):
            if kind_of(ipaddress.ip_address(host)) is Kind.NOWHERE:
                raise UsageError(f'"{address}": no machine is at {host}; give the one of this')
        case ["", family, name, "tcp", port] if family in _NAMES and name:
            pass
        case _:
            raise UsageError(
                "expected addresses like /ip4/203.0.113.9/tcp/4150 or /dns4/NAME/tcp/4150, "
                f'got "{address}"'
            )
    if not _is_port(port, least=least):
        raise UsageError(f'"{address}": expected a port from {least} to 65535, got {port}')


def look_up(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return ``addresses`` with names replaced by what this system knows them as; may block.

    Raises:
        UsageError: there is no such name.
        NetworkError: names can't be looked up now.
    """
    found: dict[str, None] = {}
    for address in addresses:
        match address.split("/"):
            case ["", family, name, "tcp", port] if family in _NAMES:
                try:
                    answers = socket.getaddrinfo(
                        name, int(port), family=_NAMES[family], type=socket.SOCK_STREAM
                    )
                except (OSError, UnicodeError) as exc:
                    text = f'"{address}": this system does not know the name: {_why(exc)}'
                    if isinstance(exc, OSError) and exc.errno == socket.EAI_AGAIN:
                        raise NetworkError(text) from None
                    raise UsageError(text) from None
                for answer in answers:
                    host = str(answer[4][0])
                    found[f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"] = None
            case _:
                found[address] = None
    return tuple(found)


def _why(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def _is_port(text: str, *, least: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and least <= int(text) < 65536


def _is_ip(host: str, family: str) -> bool:
    return target_of(f"/{family}/{host}/tcp/{MIN_PORT}") is not None
