"""Real routers of a real kernel between real processes; skipped without root, ip and nft."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from tests.namespaces import Internet, Participant, internet, participant

pytestmark = pytest.mark.processes

MODULE = "tests.echo2swarm.network.nat_peer"


@pytest.fixture
def net() -> Iterator[Internet]:
    with internet() as net:
        yield net


@asynccontextmanager
async def participants(net: Internet, *spaces: str) -> AsyncIterator[tuple[Participant, ...]]:
    """Start a go-between in the open, number 1, and the others from 2 on in ``spaces``."""
    space, host = net.host()
    async with AsyncExitStack() as stack:
        all_of_them = [await stack.enter_async_context(participant(space, MODULE, "1"))]
        for number, each in enumerate(spaces, 2):
            all_of_them.append(
                await stack.enter_async_context(participant(each, MODULE, str(number), host))
            )
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
            nursery.start_soon(tell, a, "connect 3 60")
            nursery.start_soon(tell, b, "connect 2 60")
        assert answers == {a: "connected", b: "connected"}
        assert await c.tell("connect 2 60") == "connected"

        for one in (a, b, c):
            assert await one.tell("leave 1") == "left"
        assert await a.tell("echo 3") == "echoed"
        assert await b.tell("echo 2") == "echoed"
        assert await a.tell("echo 4") == "echoed"


async def test_a_router_with_a_port_per_connection_is_a_clear_error_in_time(net: Internet) -> None:
    async with participants(net, net.home(is_symmetric=True), net.home()) as (a, _):
        assert "no way through the routers within" in await a.tell("connect 3 6")
