"""A small internet of network namespaces: hosts in the open, and homes behind routers.

Needs root, ``ip`` and ``nft``; :func:`internet` skips the test without. Nothing
in it can reach the network outside.
"""

import hashlib
import itertools
import os
import shutil
import string
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import pytest
import trio

PREFIX: Final = "203.0.113"
ANSWER_S: Final = 90.0
"""Two busy cores start a handful of processes in this time."""
ROUTER_RULES: Final = """
table ip nat {{
 chain post {{
  type nat hook postrouting priority 100;
  oifname "wan" masquerade {how}
 }}
}}
table ip filter {{
 chain in {{
  type filter hook input priority 0; policy accept;
  iifname "wan" ct state new drop
 }}
 chain through {{
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname "lan" accept
 }}
}}
"""
SHUT_RULES: Final = """
table ip filter {
 chain in {
  type filter hook input priority 0; policy accept;
  iifname "wan" ct state new drop
 }
}
"""

_numbers = itertools.count()


def wan_name(of: str) -> str:
    """Return a name for an emulated WAN; ``of`` are four letters.

    Each checkout has its own: only one WAN of a name may be open on a machine, and another
    checkout's tests may be at work beside these.
    """
    digest = hashlib.sha256(__file__.encode()).digest()
    return of + "".join(string.ascii_lowercase[byte % 26] for byte in digest[:5])


class Internet:
    """Namespaces joined by a bridge. A name of one is what ``ip netns exec`` takes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spaces: list[str] = []
        self._num_hosts = 0
        self._num_homes = 0
        self._core = self._space("core")
        _ip(f"-n {self._core} link add bridge type bridge")
        _ip(f"-n {self._core} link set bridge up")

    def host(self, *, is_shut: bool = False) -> tuple[str, str]:
        """Add a machine with a public address; returns its namespace and that address.

        One that ``is_shut`` lets nothing in but answers.
        """
        self._num_hosts += 1
        space = self._space(f"h{self._num_hosts}")
        address = self._connect(space)
        if is_shut:
            _nft(space, SHUT_RULES)
        return space, address

    def home(self, *, is_symmetric: bool = False) -> str:
        """Add a machine behind a router; returns its namespace.

        The router lets nothing in but answers. One that ``is_symmetric`` uses another
        port for each connection.
        """
        self._num_homes += 1
        number = self._num_homes
        router, home = self._space(f"r{number}"), self._space(f"n{number}")
        self._connect(router)
        _ip(f"link add lan netns {router} type veth peer name eth0 netns {home}")
        for space, device, last in ((router, "lan", 1), (home, "eth0", 2)):
            _ip(f"-n {space} addr add 10.{number}.0.{last}/24 dev {device}")
            _ip(f"-n {space} link set {device} up")
        _ip(f"-n {home} route add default via 10.{number}.0.1")
        _run(["ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
        _nft(router, ROUTER_RULES.format(how="fully-random" if is_symmetric else ""))
        return home

    def close(self) -> None:
        """Remove all of it."""
        for space in self._spaces:
            _ip(f"netns del {space}")

    def _space(self, name: str) -> str:
        space = f"{self._name}-{name}"
        _ip(f"netns add {space}")
        self._spaces.append(space)
        _ip(f"-n {space} link set lo up")
        return space

    def _connect(self, space: str) -> str:
        number = len(self._spaces)
        address = f"{PREFIX}.{number}"
        _ip(f"link add w{number} netns {self._core} type veth peer name wan netns {space}")
        _ip(f"-n {self._core} link set w{number} master bridge up")
        _ip(f"-n {space} addr add {address}/24 dev wan")
        _ip(f"-n {space} link set wan up")
        _ip(f"-n {space} route add default dev wan")
        return address


@contextmanager
def internet() -> Iterator[Internet]:
    """Yield an empty internet; skips the test where there can be none."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("nft")):
        pytest.skip("needs root, ip and nft")
    try:
        net = Internet(f"e{os.getpid()}x{next(_numbers)}")
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no network namespaces here: {exc.stderr.strip()}")
    try:
        yield net
    finally:
        net.close()


class Participant:
    """A process in a namespace that does as it is told, a line at a time."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._text = b""

    async def tell(self, line: str) -> str:
        """Send a line, and return the answer."""
        await self._stdin.send_all(line.encode() + b"\n")
        return await self.answer()

    async def answer(self) -> str:
        """Return the next line that it says."""
        with trio.fail_after(ANSWER_S):
            while b"\n" not in self._text:
                data = await self._stdout.receive_some()
                assert data, "the process ended"
                self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()


@asynccontextmanager
async def participant(space: str, module: str, *arguments: str) -> AsyncIterator[Participant]:
    """Run a module of ours in a namespace for the time of the context."""
    python = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                ["ip", "netns", "exec", space, *python],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        )
        yield Participant(process)
        nursery.cancel_scope.cancel()


def _ip(arguments: str) -> None:
    _run(["ip", *arguments.split()])


def _nft(space: str, rules: str) -> None:
    _run(["ip", "netns", "exec", space, "nft", "-f", "-"], rules)


def _run(command: list[str], text: str = "") -> None:
    subprocess.run(command, input=text, text=True, capture_output=True, check=True, timeout=60)
