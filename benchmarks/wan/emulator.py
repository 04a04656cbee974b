"""Namespaces, the wires between them, and the certainty that nothing of it is left.

Only one WAN of a name is open on a machine at a time; so whatever bears the name
when one is opened was left by a run that crashed, and is removed.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from benchmarks.wan.kernel import KernelWires
from benchmarks.wan.links import MIN_SEGMENTS, Backend, Link, backend_for
from benchmarks.wan.switch import SwitchWires
from benchmarks.wan.tools import WanError, check_possible, run

NAME: Final = "echo2wan"
DEVICE: Final = "wan0"
MAX_HOSTS: Final = 250
"""As many as have an address in one /24."""
END_S: Final = 5.0
"""Killed processes are gone within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a host's link has carried, headers included."""

    sent_bytes: int
    received_bytes: int


class _Wires(Protocol):
    def lay(self, links: Sequence[Link]) -> None: ...
    def change(self, host: int, link: Link) -> None: ...
    def close(self) -> None: ...


@contextmanager
def open_wan(
    links: Sequence[Link], *, backend: Backend | None = None, name: str = NAME
) -> Iterator["Wan"]:
    """Emulate one host for each of ``links``, for the time of the context.

    Args:
        links: what joins each host to all others.
        backend: the cheapest that will do unless given.
        name: with which the names of its namespaces and devices begin; at most 9 letters.

    Raises:
        WanError: it cannot be had here, or another one of this name is open.
    """
    if not 2 <= len(links) <= MAX_HOSTS:
        raise WanError(f"a WAN of {len(links)} hosts; it has 2 to {MAX_HOSTS}")
    if backend is Backend.TC and backend_for(links) is Backend.TAP:
        raise WanError("delay, loss or NAT was asked for; that takes backend TAP")
    check_possible()
    with ExitStack() as stack:
        stack.enter_context(_only_one(name))
        remove_leftovers(name)
        stack.callback(remove_leftovers, name)
        namespaces = [f"{name}{host}" for host in range(len(links))]
        for namespace in namespaces:
            run(["ip", "netns", "add", namespace])
            _set_up(namespace)
        addresses = [f"10.77.0.{host + 1}" for host in range(len(links))]
        wires: KernelWires | SwitchWires
        if (backend or backend_for(links)) is Backend.TC:
            wires = KernelWires(name, namespaces, DEVICE)
        else:
            wires = SwitchWires(namespaces, DEVICE)
        stack.callback(wires.close)
        wires.lay(links)
        for namespace, address in zip(namespaces, addresses, strict=True):
            run(["ip", "-n", namespace, "link", "set", "lo", "up"])
            run(["ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", DEVICE])
            run(["ip", "-n", namespace, "link", "set", DEVICE, "up"])
        if isinstance(wires, SwitchWires):
            wires.introduce(addresses)
        yield Wan(namespaces, addresses, wires)


class Wan:
    """Emulated hosts, by number. Made by :func:`open_wan`."""

    def __init__(self, namespaces: Sequence[str], addresses: Sequence[str], wires: _Wires) -> None:
        self._namespaces = namespaces
        self._addresses = addresses
        self._wires = wires

    def address(self, host: int) -> str:
        """Return a host's IPv4 address."""
        return self._addresses[host]

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` on a host, as the same process."""
        return ["ip", "netns", "exec", self._namespaces[host], *command]

    def popen(
        self, host: int, command: Sequence[str], *, stdout: int | None = None
    ) -> "subprocess.Popen[str]":
        """Start a command on a host; it is killed when the WAN closes, if it lives so long."""
        return subprocess.Popen(self.command(host, command), stdout=stdout, text=True)

    def change(self, host: int, link: Link) -> None:
        """Make a host's link another one while traffic flows.

        Raises:
            WanError: this WAN's backend cannot emulate it.
        """
        self._wires.change(host, link)

    def counters(self, host: int) -> Counters:
        """Return what a host's link has carried so far."""
        said = run(["ip", "-n", self._namespaces[host], "-s", "-j", "link", "show", DEVICE])
        return parse_counters(said)


def parse_counters(said: str) -> Counters:
    """Return the counters in what ``ip -s -j link show`` says."""
    stats = msgspec.json.decode(said)[0]["stats64"]
    return Counters(sent_bytes=stats["tx"]["bytes"], received_bytes=stats["rx"]["bytes"])


def remove_leftovers(name: str = NAME) -> None:
    """Remove all of a WAN: processes, namespaces, devices."""
    for namespace in namespaces_in(run(["ip", "netns", "list"]), name):
        _kill_all_in(namespace)
        run(["ip", "netns", "del", namespace])
    for device in devices_in(run(["ip", "-j", "link", "show"]), name):
        # Other ends of a cable go as soon as a namespace is freed, perhaps just now.
        subprocess.run(["ip", "link", "del", device], capture_output=True, check=False)  # noqa: S607


def namespaces_in(said: str, name: str) -> list[str]:
    """Return the namespaces of a WAN in what ``ip netns list`` says."""
    return re.findall(rf"^({name}\d+)\b", said, flags=re.MULTILINE)


def devices_in(said: str, name: str) -> list[str]:
    """Return the devices of a WAN in what ``ip -j link show`` says."""
    devices: list[str] = [each.get("ifname", "") for each in msgspec.json.decode(said or "[]")]
    return [device for device in devices if re.fullmatch(rf"{name}(br|p\d+)", device)]


def _kill_all_in(namespace: str) -> None:
    deadline_s = time.monotonic() + END_S
    while pids := run(["ip", "netns", "pids", namespace]).split():
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline_s:
            raise WanError(f"processes {', '.join(pids)} in {namespace} do not end")
        time.sleep(0.02)


def _set_up(namespace: str) -> None:
    """Keep a host from sending what IPv6 sends by itself, and have TCP hand over more at once."""
    wanted = {"ipv6/conf/all/disable_ipv6": 1, "ipv4/tcp_min_tso_segs": MIN_SEGMENTS}
    script = "".join(
        f"test ! -e /proc/sys/net/{name} || echo {value} > /proc/sys/net/{name}\n"
        for name, value in wanted.items()
    )
    run(["ip", "netns", "exec", namespace, "sh", "-ec", script])


@contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Make sure that no other WAN of this name is open; a holder that dies frees it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0{name}")
        except OSError:
            raise WanError(
                "another emulated WAN is open on this machine; wait until it is closed"
            ) from None
        yield
