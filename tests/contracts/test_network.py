"""What every adapter of the network port promises: the same tests on the fake and the real one."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.lowlevel
import trio.testing

from echo2swarm.network.base import Network, PeerInfo, ServeLimits, Stream
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.system.errors import NetworkError
from protocols import advert
from protocols.advert import NodeAdvert
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.gossip import Validation
from protocols.ids import PeerId, RunId
from protocols.reasons import Reason
from tests.contracts.network_worlds import PATIENCE_S, World, eventually, info_of, key_of

ECHO = "/test/echo/1.0.0"
LIMIT = 8 * 1024 * 1024
RUN = RunId("run-1")


async def echo(_peer: PeerId, request: bytes) -> bytes:
    return request


def serve_echo(network: Network, *, max_streams_per_peer: int = 8) -> None:
    serve_calls(
        network,
        ECHO,
        echo,
        max_request_bytes=LIMIT,
        max_reply_bytes=LIMIT,
        timeout_s=60,
        max_streams_per_peer=max_streams_per_peer,
    )


async def ask(network: Network, peer: PeerId, request: bytes, protocol: str = ECHO) -> bytes:
    return await call(network, peer, protocol, request, max_reply_bytes=LIMIT, timeout_s=60)


@asynccontextmanager
async def swarm_of(world: World, count: int) -> AsyncIterator[list[Network]]:
    """Yield networks in a line: each is connected to the next, and to nobody else."""
    async with AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(world.join(i + 1)) for i in range(count)]
        for one, next_one in itertools.pairwise(networks):
            await one.connect(info_of(next_one))
        yield networks


def sealed_advert(number: int, seq: int, network: Network) -> bytes:
    return advert.sign_advert(
        NodeAdvert(
            run_id=RUN,
            peer_id=network.peer,
            role="node",
            seq=seq,
            addresses=network.addresses(),
            name="n",
            engine="e",
            device="d",
            usd_per_hour=0.0,
            software="s",
        ),
        key_of(number),
    )


# Identity.


async def test_each_side_knows_who_the_other_is(world: World) -> None:
    callers: list[PeerId] = []

    async def note(peer: PeerId, request: bytes) -> bytes:
        callers.append(peer)
        return request

    async with swarm_of(world, 2) as (a, b):
        serve_calls(b, ECHO, note, max_request_bytes=LIMIT, max_reply_bytes=LIMIT, timeout_s=60)

        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"

        assert stream.peer == b.peer
        assert callers == [a.peer]


async def test_a_change_of_connections_wakes_those_who_wait_on_either_side(world: World) -> None:
    async def changed(network: Network, peers: set[PeerId]) -> None:
        with trio.fail_after(PATIENCE_S):
            while True:
                change = network.connection_changes.next_change
                if network.connected_peers() == peers:
                    return
                await change.wait()

    async with world.join(1) as a:
        async with world.join(2) as b:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(changed, a, {b.peer})
                nursery.start_soon(changed, b, {a.peer})
                await trio.testing.wait_all_tasks_blocked(0.01)
                await a.connect(info_of(b))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(changed, a, set())
                nursery.start_soon(changed, b, set())
                await trio.testing.wait_all_tasks_blocked(0.01)
                await b.disconnect(a.peer)
            await b.connect(info_of(a))
            await changed(a, {b.peer})
        await changed(a, set())


async def test_an_unchanged_set_of_connections_wakes_nobody(world: World) -> None:
    async with swarm_of(world, 2) as (a, b):
        while b.connected_peers() != {a.peer} or a.connected_peers() != {b.peer}:
            await b.connection_changes.next_change.wait()
        changes = a.connection_changes.next_change, b.connection_changes.next_change
        await a.connect(info_of(b))
        serve_echo(b)
        assert await ask(a, b.peer, b"hello") == b"hello"

        assert not any(change.is_set() for change in changes)


async def test_both_sides_see_the_same_two_ends_of_a_connection(world: World) -> None:
    async with swarm_of(world, 2) as (a, b), world.join(3) as stranger:

        async def both_see_it() -> bool:
            return None not in {a.ends(b.peer), b.ends(a.peer)}

        await eventually(both_see_it)  # Who dials knows of it a moment before the other.
        from_a, from_b = a.ends(b.peer), b.ends(a.peer)

        assert from_a is not None
        assert from_b is not None
        assert (from_a.own, from_a.other) == (from_b.other, from_b.own)
        assert a.ends(stranger.peer) is None


async def test_whoever_answers_at_an_address_can_not_pass_for_another_peer(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b, world.join(3) as c:
        with pytest.raises(NetworkError, match=f"{c.peer}: .* another peer answers there"):
            await a.connect(PeerInfo(peer=c.peer, addresses=info_of(b).addresses))

        assert a.connected_peers() == frozenset()


# Dialling.


async def test_connect_tries_every_address(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b:
        await a.connect(
            PeerInfo(peer=b.peer, addresses=(world.dead_address, *info_of(b).addresses))
        )

        assert a.connected_peers() == {b.peer}


async def test_an_unreachable_peer_is_named_with_each_address_tried(world: World) -> None:
    async with world.join(1) as a, world.join(2) as b:
        with pytest.raises(NetworkError) as caught:
            await a.connect(PeerInfo(peer=b.peer, addresses=(world.dead_address,)))

        assert b.peer in str(caught.value)
        assert world.dead_address in str(caught.value)
        assert "refused" in str(caught.value)


async def test_a_peer_that_restarts_is_reached_right_away(world: World) -> None:
    async with world.join(1) as a:
        async with world.join(2) as b:
            address = info_of(b)
            await a.connect(address)
        with pytest.raises(NetworkError):
            await ask(a, address.peer, b"are you there?")

        async with world.join(2, where=address.addresses[0]) as b:
            serve_echo(b)
            await a.connect(address)

            assert await ask(a, b.peer, b"again") == b"again"


async def test_disconnect_ends_the_connection_for_both(world: World) -> None:
    async with swarm_of(world, 2) as (a, b):
        await a.disconnect(b.peer)

        async def is_apart() -> bool:
            return not a.connected_peers() and not b.connected_peers()

        await eventually(is_apart)


# Frames.


async def test_large_frames_arrive_whole_in_both_directions(world: World) -> None:
    data = bytes(range(256)) * 20_000

    async with swarm_of(world, 2) as (a, b):
        serve_echo(b)

        assert await ask(a, b.peer, data) == data
        assert await ask(a, b.peer, b"") == b""


@pytest.mark.parametrize(
    "sizes", [(0,), (3, 4), (1, 16_379, 1, 300_000, 0), (20_000, 20_000), ()], ids=str
)
async def test_a_frame_may_be_sent_in_parts_and_received_as_a_view(
    world: World, sizes: tuple[int, ...]
) -> None:
    parts = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    shown: list[bytes] = []
    is_done = trio.Event()

    async def look(stream: Stream) -> None:
        for _ in range(2):
            view = await stream.receive_view()
            shown.append(view.tobytes())
        is_done.set()

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, look, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            await stream.send(*(memoryview(part) for part in parts))
            await stream.send(*parts)
            await is_done.wait()

    assert shown == [b"".join(parts)] * 2


async def test_frames_of_several_senders_never_interleave(world: World) -> None:
    frames = [bytes([i]) * 150_000 for i in range(6)]
    received: list[bytes] = []
    is_done = trio.Event()

    async def collect(stream: Stream) -> None:
        received.extend([await stream.receive() for _ in frames])
        is_done.set()

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, collect, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            async with trio.open_nursery() as nursery:
                for frame in frames:
                    nursery.start_soon(stream.send, frame)
            await is_done.wait()

    assert sorted(received) == frames


async def test_a_frame_over_the_limit_is_refused_with_its_reason(world: World) -> None:
    async with swarm_of(world, 2) as (a, b):
        serve_echo(b)
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=10) as stream:
            await stream.send(b"eleven byte")
            with pytest.raises(RemoteProtocolError) as caught:
                await stream.receive()
            with pytest.raises(NetworkError):
                await stream.receive()

        assert caught.value.reason is Reason.TOO_LARGE
        assert await ask(a, b.peer, b"still fine") == b"still fine"


async def test_a_request_over_the_limit_ends_its_stream_only(world: World) -> None:
    async with swarm_of(world, 2) as (a, b):
        serve_calls(b, ECHO, echo, max_request_bytes=10, max_reply_bytes=10, timeout_s=60)
        with pytest.raises(NetworkError):
            await ask(a, b.peer, b"eleven byte")

        assert await ask(a, b.peer, b"ten bytes.") == b"ten bytes."


async def test_a_slow_reader_gets_every_frame(world: World) -> None:
    frames = [bytes([i]) * 300_000 for i in range(20)]

    async def pour(stream: Stream) -> None:
        for frame in frames:
            await stream.send(frame)

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, pour, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            received = [await stream.receive()]
            await trio.sleep(world.slow_reader_s)
            received += [await stream.receive() for _ in frames[1:]]

    assert received == frames


async def test_what_was_sent_before_a_close_still_arrives(world: World) -> None:
    received: list[bytes] = []
    is_over = trio.Event()

    async def collect(stream: Stream) -> None:
        try:
            while True:
                received.append(await stream.receive())
        finally:
            is_over.set()

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, collect, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            for i in range(5):
                await stream.send(bytes([i]) * 1000)
        await is_over.wait()

    assert received == [bytes([i]) * 1000 for i in range(5)]


async def test_the_end_of_a_stream_is_an_error_and_no_frame(world: World) -> None:
    async def say_one_thing(stream: Stream) -> None:
        await stream.send(b"one")

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, say_one_thing, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            assert await stream.receive() == b"one"
            with pytest.raises(NetworkError):
                await stream.receive()


async def test_a_writer_learns_that_its_reader_has_left(world: World) -> None:
    is_over = trio.Event()

    async def pour(stream: Stream) -> None:
        try:
            while True:
                await stream.send(bytes(100_000))
        except NetworkError:
            is_over.set()
            raise

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, pour, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            await stream.receive()

        with trio.fail_after(60):
            await is_over.wait()


# Cancellation.


async def test_cancelled_reads_lose_nothing(world: World) -> None:
    async def pour(stream: Stream) -> None:
        for i in range(200):
            await stream.send(i.to_bytes(2, "big") * 2000)
            await trio.lowlevel.checkpoint()

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, pour, ServeLimits(max_frame_bytes=LIMIT))
        received: list[bytes] = []
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            num_cancelled = 0
            while len(received) < 200:
                with trio.CancelScope() as scope:
                    # Cancelled at some checkpoint inside: which one varies from turn to turn.
                    scope.deadline = trio.current_time() + 0.0004 * (num_cancelled % 5)
                    received.append(await stream.receive())
                num_cancelled += scope.cancelled_caught

        assert num_cancelled > 0
        assert received == [i.to_bytes(2, "big") * 2000 for i in range(200)]


async def test_cancelled_sends_opens_and_calls_leave_the_connection_usable(world: World) -> None:
    async def cancelled_call(network: Network, peer: PeerId, after_s: float) -> None:
        with trio.move_on_after(after_s):
            await ask(network, peer, bytes(200_000))

    async with swarm_of(world, 2) as (a, b):
        serve_echo(b, max_streams_per_peer=64)
        for i in range(60):
            async with trio.open_nursery() as nursery:
                for j in range(3):
                    nursery.start_soon(cancelled_call, a, b.peer, 0.0005 * ((i + 7 * j) % 20))

        assert await ask(a, b.peer, b"still here") == b"still here"
        assert a.connected_peers() == {b.peer}


async def test_a_silent_peer_is_an_error_after_the_deadline(world: World) -> None:
    async def say_nothing(_peer: PeerId, _request: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async with swarm_of(world, 2) as (a, b):
        serve_calls(b, ECHO, say_nothing, max_request_bytes=10, max_reply_bytes=10, timeout_s=60)

        with pytest.raises(NetworkError, match=r"did not answer .* within 0\.2 s"):
            await call(a, b.peer, ECHO, b"?", max_reply_bytes=10, timeout_s=0.2)


# Handlers.


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("a bug"),
        trio.TooSlowError(),
        NetworkError("lost another peer"),
        RemoteProtocolError("nonsense"),
        ExceptionGroup("of a nursery", [ValueError("a bug")]),
    ],
    ids=lambda exc: type(exc).__name__,
)
async def test_a_handler_that_raises_ends_its_stream_only(world: World, exc: Exception) -> None:
    async def fail(_stream: Stream) -> None:
        raise exc

    async with swarm_of(world, 2) as (a, b):
        b.serve("/test/fail/1.0.0", fail, ServeLimits(max_frame_bytes=10))
        serve_echo(b)
        with pytest.raises(NetworkError):
            await ask(a, b.peer, b"?", protocol="/test/fail/1.0.0")

        assert await ask(a, b.peer, b"fine") == b"fine"


async def test_a_protocol_nobody_serves_is_an_error(world: World) -> None:
    async with swarm_of(world, 2) as (a, b):
        with pytest.raises(NetworkError):
            await ask(a, b.peer, b"?", protocol="/test/unknown/1.0.0")


async def test_one_peer_has_only_so_many_streams_at_once(world: World) -> None:
    release = trio.Event()
    num_running = 0

    async def wait(_peer: PeerId, request: bytes) -> bytes:
        nonlocal num_running
        num_running += 1
        await release.wait()
        return request

    outcomes: list[str] = []

    async def one_call(network: Network, peer: PeerId) -> None:
        try:
            await ask(network, peer, b"?")
        except NetworkError:
            outcomes.append("refused")
            if outcomes.count("refused") == 3:
                release.set()
        else:
            outcomes.append("served")

    async with swarm_of(world, 2) as (a, b):
        serve_calls(
            b,
            ECHO,
            wait,
            max_request_bytes=10,
            max_reply_bytes=10,
            timeout_s=60,
            max_streams_per_peer=2,
        )
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one_call, a, b.peer)

        assert sorted(outcomes) == ["refused"] * 3 + ["served"] * 2
        assert num_running == 2
        assert await ask(a, b.peer, b"?") == b"?"


async def test_a_stream_open_too_long_is_reset(world: World) -> None:
    async def linger(_stream: Stream) -> None:
        await trio.sleep_forever()

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, linger, ServeLimits(max_frame_bytes=10, timeout_s=1))

        async with a.open_stream(b.peer, ECHO, max_frame_bytes=10) as stream:
            with pytest.raises(NetworkError):
                await stream.receive()


async def test_a_peer_that_vanishes_breaks_its_streams_and_calls(world: World) -> None:
    started = trio.Event()

    async def start_and_wait(stream: Stream) -> None:
        await stream.send(b"first")
        started.set()
        await trio.sleep_forever()

    async with swarm_of(world, 2) as (a, b):
        b.serve(ECHO, start_and_wait, ServeLimits(max_frame_bytes=LIMIT))
        async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
            assert await stream.receive() == b"first"
            await b.disconnect(a.peer)
            with trio.fail_after(60), pytest.raises(NetworkError):
                await stream.receive()
            with pytest.raises(NetworkError):
                await stream.send(b"too late")


async def test_bulk_and_control_streams_both_work_to_one_peer(world: World) -> None:
    data = bytes(2_000_000)

    async with swarm_of(world, 2) as (a, b):
        serve_echo(b)
        async with (
            a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT, bulk=True) as bulk,
            a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as control,
        ):
            await bulk.send(data)
            await control.send(b"quick")
            assert await control.receive() == b"quick"
            assert await bulk.receive() == data
            assert bulk.peer == control.peer == b.peer
        assert a.connected_peers() == {b.peer}


# Gossip.


def accept(_author: PeerId, _data: bytes) -> Validation:
    return Validation.ACCEPT


async def test_gossip_reaches_subscribers_beyond_the_neighbours(world: World) -> None:
    async with (
        swarm_of(world, 3) as (a, b, c),
        a.subscribe("t", accept) as to_a,
        b.subscribe("t", accept) as to_b,
        c.subscribe("t", accept) as to_c,
    ):
        await _until_gossip_flows(a, to_c)

        await a.publish("t", b"news")

        assert await _next_other_than_probes(to_b) == (a.peer, b"news")
        assert await _next_other_than_probes(to_c) == (a.peer, b"news")
        with pytest.raises(trio.WouldBlock):
            to_a.receive_nowait()  # What one says oneself is no news.


async def test_gossip_that_a_validator_does_not_accept_travels_no_further(world: World) -> None:
    def strict(_author: PeerId, data: bytes) -> Validation:
        if data == b"boom":
            raise ValueError("a bug in the validator")
        return {b"bad": Validation.REJECT, b"old": Validation.IGNORE}.get(data, Validation.ACCEPT)

    async with (
        swarm_of(world, 3) as (a, b, c),
        b.subscribe("t", strict) as to_b,
        c.subscribe("t", accept) as to_c,
    ):
        await _until_gossip_flows(a, to_c)

        for data in (b"bad", b"boom", b"old", b"good"):
            await a.publish("t", data)

        assert await _next_other_than_probes(to_b) == (a.peer, b"good")
        assert await _next_other_than_probes(to_c) == (a.peer, b"good")


async def test_a_burst_of_gossip_arrives_whole(world: World) -> None:
    messages = [f"message {i}".encode() for i in range(100)]

    async with swarm_of(world, 2) as (a, b), b.subscribe("t", accept) as to_b:
        await _until_gossip_flows(a, to_b)
        for message in messages:
            await a.publish("t", message)

        received = [(await _next_other_than_probes(to_b))[1] for _ in messages]

    assert sorted(received) == sorted(messages)


async def test_a_lagging_subscriber_loses_the_oldest_messages(world: World) -> None:
    judged: list[bytes] = []

    def note(_author: PeerId, data: bytes) -> Validation:
        judged.append(data)
        return Validation.ACCEPT

    async with swarm_of(world, 2) as (a, b), b.subscribe("t", note) as to_b:
        await _until_gossip_flows(a, to_b)
        for i in range(300):
            await a.publish("t", f"{i:03}".encode())

        async def is_quiet() -> bool:
            num_judged = len(judged)
            await trio.sleep(0.3)
            return b"299" in judged and len(judged) == num_judged

        await eventually(is_quiet)
        received = [to_b.receive_nowait()[1] for _ in range(256)]

    assert b"299" in received
    assert b"000" not in received


async def test_gossip_over_the_size_limit_is_our_own_mistake(world: World) -> None:
    async with world.join(1) as a:
        with pytest.raises(LocalProtocolError):
            await a.publish("t", bytes(1_000_001))


async def _until_gossip_flows(
    source: Network, sink: trio.MemoryReceiveChannel[tuple[PeerId, bytes]]
) -> None:
    """Subscriptions take a moment to be known: publish probes until one gets through."""
    with trio.fail_after(60):
        while True:
            await source.publish("t", b"probe")
            with trio.move_on_after(0.2):
                await sink.receive()
                return


async def _next_other_than_probes(
    sink: trio.MemoryReceiveChannel[tuple[PeerId, bytes]],
) -> tuple[PeerId, bytes]:
    with trio.fail_after(60):
        while True:
            author, data = await sink.receive()
            if data != b"probe":
                return author, data


# DHT.


async def test_providers_are_found_through_a_peer_in_between(world: World) -> None:
    key = bytes(range(32))

    async with swarm_of(world, 3) as (a, _b, c):
        # A seeker that provides the same key must not find only itself.
        await c.provide(key)

        async def is_found() -> bool:
            await a.provide(key)
            found = {info.peer: info.addresses for info in await c.find_providers(key)}
            return found.get(a.peer) == info_of(a).addresses and c.peer not in found

        await eventually(is_found)


async def test_a_latecomer_finds_who_provided_before_it_came(world: World) -> None:
    key = bytes(range(32))

    async with swarm_of(world, 2) as (a, b):
        await a.provide(key)
        async with world.join(3) as late:
            await late.connect(info_of(b))
            # That it provides the key too must not keep it from asking others.
            await late.provide(key)

            async def is_found() -> bool:
                return a.peer in {info.peer for info in await late.find_providers(key)}

            await eventually(is_found)


async def test_nobody_provides_what_nobody_provided(world: World) -> None:
    async with swarm_of(world, 2) as (a, _b):
        assert list(await a.find_providers(bytes(32))) == []


async def test_a_peer_found_through_another_can_be_called(world: World) -> None:
    async with swarm_of(world, 3) as (a, _b, c):
        serve_echo(c)

        async def is_found() -> bool:
            info = await a.find_peer(c.peer)
            return info is not None and set(info_of(c).addresses) <= set(info.addresses)

        await eventually(is_found)
        info = await a.find_peer(c.peer)
        assert info is not None
        await a.connect(info)
        assert await ask(a, c.peer, b"found you") == b"found you"


async def test_a_peer_nobody_knows_is_not_found(world: World) -> None:
    async with swarm_of(world, 2) as (a, _b), world.join(9) as stranger:
        assert await a.find_peer(stranger.peer) is None


async def test_the_newest_record_is_read_and_not_a_local_copy(world: World) -> None:
    async with swarm_of(world, 3) as (a, b, c):
        key = advert.dht_key_of(RUN, a.peer)
        old, new = sealed_advert(1, 1, a), sealed_advert(1, 2, a)

        async def holds(network: Network, value: bytes) -> bool:
            return await network.get_record(key) == value

        await a.put_record(key, old)
        await eventually(lambda: holds(c, old))
        await eventually(lambda: holds(b, old))

        await a.put_record(key, new)
        await eventually(lambda: holds(c, new))
        await c.put_record(key, old)
        for network in (a, b, c):
            assert await network.get_record(key) == new


async def test_a_record_that_its_peer_did_not_sign_is_not_published(world: World) -> None:
    async with swarm_of(world, 2) as (a, b):
        key = advert.dht_key_of(RUN, a.peer)
        with pytest.raises(LocalProtocolError):
            await b.put_record(key, sealed_advert(2, 9, a))

        assert await a.get_record(key) is None
        assert await a.get_record("/elsewhere/key") is None


# The end.


async def test_closing_leaves_no_task_and_frees_the_address(world: World) -> None:
    def num_tasks() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    before = num_tasks()
    for _ in range(2):
        async with swarm_of(world, 2) as (a, b), b.subscribe("t", accept):
            serve_echo(b)
            assert await ask(a, b.peer, b"x") == b"x"
            address = info_of(b).addresses[0]

        async def is_clean() -> bool:
            return num_tasks() == before

        await eventually(is_clean)
        async with world.join(2, where=address):
            pass
        await eventually(is_clean)


async def test_closing_right_after_connecting_leaves_no_task(world: World) -> None:
    before = trio.lowlevel.current_statistics().tasks_living

    for _ in range(3):
        async with swarm_of(world, 2):
            pass
        with trio.move_on_after(60):
            while trio.lowlevel.current_statistics().tasks_living > before:
                await trio.lowlevel.checkpoint()
        assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a_cancelled_or_failed_network_leaves_no_task_and_frees_the_address(
    world: World,
) -> None:
    before = trio.lowlevel.current_statistics().tasks_living

    async def is_clean() -> bool:
        return trio.lowlevel.current_statistics().tasks_living == before

    with trio.CancelScope() as scope:
        async with swarm_of(world, 2) as (a, b):
            serve_echo(b)
            address = info_of(b).addresses[0]
            assert await ask(a, b.peer, b"x") == b"x"
            scope.cancel()
            await trio.sleep_forever()
    await eventually(is_clean)

    with pytest.raises(KeyError):
        async with world.join(2, where=address) as b:
            raise KeyError
    await eventually(is_clean)
    async with world.join(2, where=address):
        pass


async def test_the_callers_own_exception_comes_out_as_it_was(world: World) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with world.join(1):
            raise KeyError("mine")


async def test_closing_in_mid_traffic_is_quiet(world: World) -> None:
    async def pour(stream: Stream) -> None:
        while True:
            await stream.send(bytes(100_000))

    async with world.join(1) as a:
        async with world.join(2) as b:
            await a.connect(info_of(b))
            b.serve(ECHO, pour, ServeLimits(max_frame_bytes=LIMIT))
            async with a.open_stream(b.peer, ECHO, max_frame_bytes=LIMIT) as stream:
                for _ in range(3):
                    await stream.receive()
                # The stream outlives the network that serves it.
                nursery_stream = stream
        with pytest.raises(NetworkError):
            await nursery_stream.receive()


async def test_an_address_in_use_is_one_clear_error(world: World) -> None:
    async with world.join(1) as a:
        with pytest.raises(NetworkError, match="in use"):
            async with world.join(2, where=info_of(a).addresses[0]):
                pass
