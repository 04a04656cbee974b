"""Many peers that hold streams open and say nothing keep nobody out; same on fake and real."""

from contextlib import AsyncExitStack, suppress
from functools import partial

import trio

from echo2swarm.network.base import Network, ServeLimits, Stream, call
from echo2swarm.network.rpc import serve_calls
from echo2swarm.system.errors import NetworkError
from protocols.ids import PeerId
from tests.contracts.network_worlds import World, eventually, info_of

ECHO = "/test/echo/1.0.0"
MAX_STREAMS = 8
MAX_PER_PEER = 4


async def echo(_peer: PeerId, request: bytes) -> bytes:
    return request


async def hold(network: Network, peer: PeerId, *, request: bytes | None = None) -> None:
    """Open a stream, say at most one thing, and do so again whenever it ends."""
    while True:
        with suppress(NetworkError):
            async with network.open_stream(peer, ECHO, max_frame_bytes=10) as stream:
                if request is not None:
                    await stream.send(request)
                await stream.receive()
        await trio.sleep(0.05)


async def ask(network: Network, peer: PeerId) -> bytes:
    return await call(network, peer, ECHO, b"hello", max_reply_bytes=10, timeout_s=5)


async def join(world: World, stack: AsyncExitStack, number: int, server: Network) -> Network:
    network = await stack.enter_async_context(world.join(number))
    await network.connect(info_of(server))
    return network


async def test_a_newcomer_is_answered_though_others_hold_every_stream_in_silence(
    world: World,
) -> None:
    async with world.join(1) as server, AsyncExitStack() as stack:
        serve_calls(
            server,
            ECHO,
            echo,
            max_request_bytes=10,
            max_reply_bytes=10,
            timeout_s=60,
            max_streams=MAX_STREAMS,
            max_streams_per_peer=MAX_PER_PEER,
        )
        strangers = [await join(world, stack, number, server) for number in range(2, 5)]
        honest = await join(world, stack, 9, server)
        async with trio.open_nursery() as nursery:
            for silent in strangers:
                for _ in range(MAX_PER_PEER):
                    nursery.start_soon(hold, silent, server.peer)
            await trio.sleep(0.5)

            for _ in range(20):
                assert await ask(honest, server.peer) == b"hello"
            nursery.cancel_scope.cancel()


async def test_the_proven_are_answered_though_others_hold_all_that_strangers_may(
    world: World,
) -> None:
    num_held = 0

    async def work(stream: Stream) -> None:
        nonlocal num_held
        if await stream.receive() == b"hello":
            await stream.send(b"hello")
            return
        num_held += 1
        try:
            await trio.sleep_forever()
        finally:
            num_held -= 1

    async with world.join(1) as server, AsyncExitStack() as stack:
        server.serve(
            ECHO,
            work,
            ServeLimits(max_frame_bytes=10, max_streams=MAX_STREAMS, max_streams_per_peer=1),
        )
        strangers = [await join(world, stack, number, server) for number in range(2, 10)]
        honest = await join(world, stack, 11, server)
        server.protect(lambda peer: peer == honest.peer)
        async with trio.open_nursery() as nursery:
            for busy in strangers:
                nursery.start_soon(partial(hold, busy, server.peer, request=b"work"))

            async def is_full() -> bool:
                return num_held == MAX_STREAMS - MAX_STREAMS // 4

            await eventually(is_full)
            for _ in range(20):
                assert await ask(honest, server.peer) == b"hello"
            nursery.cancel_scope.cancel()
