"""Messages each of which a careful program would write a line about."""

import secrets
from collections.abc import Awaitable, Callable

import trio

from benchmarks.attacks.member import Member, open_member
from benchmarks.attacks.scene import Scene
from benchmarks.attacks.wire import frame
from protocols import heartbeat, leases, rollouts
from protocols.heartbeat import NodeState, PeerReport
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout

LONG = "\U0001f4a3" * 120
STATES = (NodeState.ACTIVE, NodeState.STANDBY, NodeState.PAUSED, NodeState.SYNCING)


async def run(scene: Scene) -> None:
    """Send them in turn at the given pace: unknown leases, new sessions, reports, garbage."""

    async def act(index: int) -> None:
        async with open_member(scene, index) as member:
            await member.heartbeat(text=LONG)
            number = index
            while True:
                await scene.turn()
                await DEEDS[number % len(DEEDS)](member, number)
                number += 1

    await scene.crowd(act)


async def _unknown_lease(member: Member, _: int) -> None:
    nothing = Rollout(1, 1, 1, 1, b"", b"", FinishReason.STOP)
    await member.submit(secrets.token_hex(32), [nothing])


async def _new_session(member: Member, _: int) -> None:
    member.session_id = secrets.token_hex(32)
    await member.heartbeat(text=LONG)


async def _reports(member: Member, _: int) -> None:
    await member.heartbeat(
        reports=tuple(
            PeerReport(secrets.token_hex(40), Reason.BAD_CHUNK_HASH, 2**31 - 1)
            for _ in range(heartbeat.MAX_REPORTS)
        )
    )


async def _other_state(member: Member, number: int) -> None:
    await member.heartbeat(state=STATES[number // len(DEEDS) % len(STATES)], text=LONG)


async def _garbage(member: Member, number: int) -> None:
    protocols = (heartbeat.PROTOCOL_ID, leases.PROTOCOL_ID, rollouts.PROTOCOL_ID)
    stream = await member.wire.open_stream(
        protocols[number % len(protocols)], frame(secrets.token_bytes(200))
    )
    with trio.move_on_after(5.0):
        await stream.wait_ended()
    stream.forget()


async def _too_long(member: Member, _: int) -> None:
    stream = await member.wire.open_stream(heartbeat.PROTOCOL_ID, b"\x7f\xff\xff\xff")
    with trio.move_on_after(5.0):
        await stream.wait_ended()
    stream.forget()


DEEDS: tuple[Callable[[Member, int], Awaitable[None]], ...] = (
    _unknown_lease,
    _new_session,
    _reports,
    _other_state,
    _garbage,
    _too_long,
)
