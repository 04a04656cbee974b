import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.wan import Backend, Link, Wan, WanError, open_wan
from benchmarks.wan.emulator import Counters, devices_in, namespaces_in, parse_counters
from benchmarks.wan.tools import run
from tests.namespaces import wan_name

NAME = wan_name("test")
LINK = Link(up_mbit_per_s=50, down_mbit_per_s=50)

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists(),
    reason="makes network namespaces: needs root, iproute2 and /dev/net/tun",
)

LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 5600))
print("up", flush=True)
print(server.accept()[0].recv(100).decode())
"""
GREET = """
import socket, sys
socket.create_connection((sys.argv[1], 5600), timeout=float(sys.argv[2])).sendall(b"hello")
"""


def _left_over() -> list[str]:
    return [
        *namespaces_in(run(["ip", "netns", "list"]), NAME),
        *devices_in(run(["ip", "-j", "link", "show"]), NAME),
    ]


def _greet(wan: Wan, sender: int, receiver: int, *, timeout_s: float = 60.0) -> bool:
    """Try to open a connection and say something over it; return whether it arrived."""
    listener = wan.popen(receiver, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert listener.stdout is not None
    listener.stdout.readline()
    address = wan.address(receiver)
    done = subprocess.run(
        wan.command(sender, [sys.executable, "-c", GREET, address, f"{timeout_s}"]),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        listener.kill()
    return listener.communicate()[0] == "hello\n"


@pytest.fixture
def one_behind_nat() -> Iterator[Wan]:
    behind_nat = Link(up_mbit_per_s=50, down_mbit_per_s=50, accepts_inbound=False)
    with open_wan([LINK, behind_nat], name=NAME) as wan:
        yield wan


@needs_root
@pytest.mark.processes
@pytest.mark.parametrize("backend", list(Backend))
def test_hosts_reach_each_other_and_nothing_of_them_is_left(backend: Backend) -> None:
    with open_wan([LINK, LINK], backend=backend, name=NAME) as wan:
        assert _greet(wan, 0, 1)
        assert wan.counters(0).sent_bytes > 0
        wan.change(0, Link(up_mbit_per_s=1, down_mbit_per_s=1))
        assert _greet(wan, 1, 0)
        survivor = wan.popen(1, [sys.executable, "-c", "import time; time.sleep(600)"])

    assert survivor.wait() == -signal.SIGKILL
    assert _left_over() == []


@needs_root
@pytest.mark.processes
def test_a_host_behind_nat_can_dial_but_not_be_dialled(one_behind_nat: Wan) -> None:
    assert _greet(one_behind_nat, 1, 0)
    assert not _greet(one_behind_nat, 0, 1, timeout_s=1.0)


@needs_root
@pytest.mark.processes
def test_what_a_crashed_run_left_is_removed() -> None:
    run(["ip", "netns", "add", f"{NAME}0"])
    run(["ip", "netns", "add", f"{NAME}7"])
    left = subprocess.Popen(["ip", "netns", "exec", f"{NAME}7", "sleep", "600"])

    with open_wan([LINK, LINK], name=NAME):
        assert left.wait() == -signal.SIGKILL
        now_there = set(namespaces_in(run(["ip", "netns", "list"]), NAME))

    assert now_there == {f"{NAME}0", f"{NAME}1"}
    assert _left_over() == []


@needs_root
@pytest.mark.processes
def test_a_second_wan_of_the_name_does_not_tear_down_the_first() -> None:
    with open_wan([LINK, LINK], name=NAME) as wan:
        with (
            pytest.raises(WanError, match="wait until it is closed"),
            open_wan([LINK] * 2, name=NAME),
        ):
            pass

        assert _greet(wan, 0, 1)


def test_a_backend_that_cannot_emulate_the_links_is_refused() -> None:
    with (
        pytest.raises(WanError, match="backend TAP"),
        open_wan([LINK, Link(delay_s=0.1)], backend=Backend.TC, name=NAME),
    ):
        pass


def test_without_root_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(WanError, match="run it as root"), open_wan([LINK, LINK], name=NAME):
        pass


def test_only_namespaces_and_devices_of_the_name_are_ours() -> None:
    listed = "echo2wan1 (id: 3)\necho2wan0 (id: 2)\necho2wanderer\necho2test0\nlab\n"
    shown = (
        '[{"ifname":"lo"},{"ifname":"echo2wanbr"},{"ifname":"echo2wanp12"},{},'
        '{"ifname":"echo2wanx"}]'
    )

    assert namespaces_in(listed, "echo2wan") == ["echo2wan1", "echo2wan0"]
    assert devices_in(shown, "echo2wan") == ["echo2wanbr", "echo2wanp12"]


def test_counters_are_those_of_the_link() -> None:
    said = '[{"ifname":"wan0","stats64":{"rx":{"bytes":7,"packets":1},"tx":{"bytes":9}}}]'

    assert parse_counters(said) == Counters(sent_bytes=9, received_bytes=7)


SEND = """
import socket, sys
socket.create_connection((sys.argv[1], 5600)).sendall(bytes(1_000_000))
"""
TAKE = """
import socket
server = socket.create_server(("0.0.0.0", 5600))
print("up", flush=True)
connection, _ = server.accept()
num_bytes = 0
while data := connection.recv(1 << 16):
    num_bytes += len(data)
print(num_bytes)
"""


@needs_root
@pytest.mark.processes
@pytest.mark.parametrize("link", [Link(delay_s=0.001), Link(loss=0.001)], ids=["whole", "cut"])
def test_the_switch_passes_everything_on_intact(link: Link) -> None:
    with open_wan([link, link], name=NAME) as wan:
        taker = wan.popen(1, [sys.executable, "-c", TAKE], stdout=subprocess.PIPE)
        assert taker.stdout is not None
        taker.stdout.readline()
        subprocess.run(
            wan.command(0, [sys.executable, "-c", SEND, wan.address(1)]), check=True, timeout=120
        )

        assert taker.communicate()[0] == "1000000\n"
