"""Real routers of a real kernel between real processes; skipped without root, ip and nft."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio

from tests.namespaces import Internet, internet

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

ANSWER_S = 60.0


@pytest.fixture
def net() -> Iterator[Internet]:
    with internet() as net:
        yield net


class Participant:
    """A process in a namespace that does as it is told."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._text = b""

    async def tell(self, line: str) -> str:
        await self._stdin.send_all(line.encode() + b"\n")
        return await self.answer()

    async def answer(self) -> str:
        with trio.fail_after(ANSWER_S):
            while b"\n" not in self._text:
                data = await self._stdout.receive_some()
                assert data, "the process ended"
                self._text += data
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()


@asynccontextmanager
async def participant(space: str, number: int, *hosts: str) -> AsyncIterator[Participant]:
    module = "tests.echo2swarm.network.nat_peer"
    python = [sys.executable, "-W", "ignore", "-m", module, str(number), *hosts]
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


@asynccontextmanager
async def participants(net: Internet, *spaces: str) -> AsyncIterator[tuple[Participant, ...]]:
    """Start a go-between in the open, number 1, and the others from 2 on in ``spaces``."""
    space, host = net.host()
    async with AsyncExitStack() as stack:
        all_of_them = [await stack.enter_async_context(participant(space, 1))]
        for number, each in enumerate(spaces, 2):
            all_of_them.append(await stack.enter_async_context(participant(each, number, host)))
        for one in all_of_them:
            assert await one.answer() == "ready"
        yield tuple(all_of_them[1:])


async def test_who_can_not_be_dialled_is_met_and_then_needs_nobody(net: Internet) -> None:
    shut, _ = net.host(is_shut=True)
    async with participants(net, net.home(), net.home(), shut) as (a, b, c):
        answers = {}

        async def tell(one: Participant, line: str) -> None:
            answers[one] = await one.tell(line)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, a, "connect 3 10")
            nursery.start_soon(tell, b, "connect 2 10")
        assert answers == {a: "connected", b: "connected"}
        assert await c.tell("connect 2 10") == "connected"

        for one in (a, b, c):
            assert await one.tell("leave 1") == "left"
        assert await a.tell("echo 3") == "echoed"
        assert await b.tell("echo 2") == "echoed"
        assert await a.tell("echo 4") == "echoed"


async def test_a_router_with_a_port_per_connection_is_a_clear_error_in_time(net: Internet) -> None:
    async with participants(net, net.home(is_symmetric=True), net.home()) as (a, _):
        assert "no way through the routers within" in await a.tell("connect 3 3")
