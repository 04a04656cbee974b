"""Versions reach nodes behind real routers of a real kernel, and these pass them on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.echo2swarm.weights.nat_swarm_peer import SIZE_BYTES
from tests.namespaces import Internet, Participant, internet, participant

pytestmark = pytest.mark.processes

MODULE = "tests.echo2swarm.weights.nat_swarm_peer"


@pytest.fixture
def net() -> Iterator[Internet]:
    with internet() as net:
        yield net


@asynccontextmanager
async def swarm(
    net: Internet, folder: Path, *spaces: str
) -> AsyncIterator[tuple[Participant, ...]]:
    """Start a learner in the open, and nodes from number 1 on in ``spaces``."""
    space, host = net.host()
    async with AsyncExitStack() as stack:
        everybody = [
            await stack.enter_async_context(participant(space, MODULE, "0", str(folder / "0")))
        ]
        for number, each in enumerate(spaces, 1):
            node = participant(each, MODULE, str(number), str(folder / f"{number}"), host)
            everybody.append(await stack.enter_async_context(node))
        for one in everybody:
            assert await one.answer() == "ready"
        yield tuple(everybody)


async def publish(version: int, learner: Participant, *nodes: Participant) -> None:
    """Publish, and wait until all nodes hold it."""

    async def hold(node: Participant) -> None:
        assert await node.tell(f"hold {version}") == "held"

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(hold, node)
        assert await learner.tell(f"publish {version}") == "published"


async def test_nodes_that_can_only_dial_out_get_all_versions_and_pass_them_on(
    net: Internet, tmp_path: Path
) -> None:
    (open_space, host), (shut, _) = net.host(), net.host(is_shut=True)
    async with swarm(net, tmp_path, open_space, shut, net.home()) as (learner, node, one, two):
        for each in (one, two):
            assert await each.tell(f"connect 1 {host}") == "connected"

        await publish(0, learner, node, one, two)
        await publish(1, learner, node, one, two)

        assert int(await one.tell("sent")) + int(await two.tell("sent")) > 0.1 * SIZE_BYTES
        assert int(await learner.tell("sent")) < 2 * 2.9 * SIZE_BYTES


async def test_two_homes_with_only_the_learner_in_the_open_spare_its_line(
    net: Internet, tmp_path: Path
) -> None:
    async with swarm(net, tmp_path, net.home(), net.home()) as (learner, one, two):
        assert await one.tell("meet 2") == "met"

        await publish(0, learner, one, two)

        assert int(await one.tell("sent")) + int(await two.tell("sent")) > 0.1 * SIZE_BYTES
        assert int(await learner.tell("sent")) < 1.6 * SIZE_BYTES
