"""Members who take work and answer with mathematics that takes for ever to look at."""

from typing import Final

import trio

from benchmarks.attacks.member import Member, answer, open_member
from benchmarks.attacks.scene import Scene

TEXTS: Final = {12: "$", 13: "((9!)!)!", 14: "9^{9^{9}}"}
"""By token of the model that the run is made with: what it stands for there.

A formula takes three of them, so that honest nodes do not hit upon one by chance.
"""
FORMULAS: Final = ((12, 13, 12), (12, 14, 12))
BEAT_S: Final = 0.5
GAP_S: Final = 0.2


async def run(scene: Scene) -> None:
    """Take leases, and give back completions that are such a formula."""

    async def submit(member: Member, index: int) -> None:
        lease = await member.lease(max_completions=16)
        if lease is None:
            scene.notes["no lease"] += 1
            await trio.sleep(GAP_S)
            return
        scene.tried()
        formula = FORMULAS[index % len(FORMULAS)]
        tokens = (*formula, lease.sampling.stop_token_ids[0])
        reply = await member.submit(lease.lease_id, answer(lease, tokens, version=member.newest))
        for verdict in reply.verdicts:
            scene.notes[str(verdict.refusal and verdict.refusal.value)] += 1

    async def beat(member: Member) -> None:
        while True:
            await member.heartbeat()
            await trio.sleep(BEAT_S)

    async def act(index: int) -> None:
        async with open_member(scene, index) as member:
            await member.heartbeat()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beat, member)
                while True:
                    await submit(member, index)

    await scene.crowd(act)
