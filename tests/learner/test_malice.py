"""Each malicious or broken submission has its own reason; the rest of the run goes on."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from echo2swarm.errors import NetworkError
from learner.training.messages import SampledBy
from protocols.activation import PeerReport
from protocols.ids import PeerId
from protocols.leases import Lease
from protocols.packed import pack_floats, pack_tokens
from protocols.reasons import Reason
from protocols.rollouts import SubmissionReply
from tests.echo2swarm.dispatch.samples import STOP
from tests.learner.swarm_world import (
    UNSCORABLE_TOKEN,
    Alter,
    ScriptedNode,
    World,
    config,
    open_world,
)


def change(**fields: object) -> Alter:
    return lambda made: msgspec.structs.replace(made, **fields)


async def cheat(world: World, alter: Alter) -> tuple[ScriptedNode, SubmissionReply]:
    """Let a node lease work and submit it altered, beside an honest one."""
    cheater = world.start_node(1, generate_s=1.0, alter=alter)
    while not cheater.replies:  # noqa: ASYNC110
        await trio.sleep(0.1)
    return cheater, cheater.replies[0]


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (change(tokens=pack_tokens([1, 2, STOP])), Reason.WRONG_SHAPE),
        (change(tokens=b"", logprobs=b""), Reason.WRONG_SHAPE),
        (change(logprobs=pack_floats([-1.0, math.nan])), Reason.NON_FINITE_LOGPROB),
        (change(logprobs=pack_floats([1.0, -1.0])), Reason.POSITIVE_LOGPROB),
        (change(logprobs=pack_floats([-1e30, -1e30])), Reason.IMPOSSIBLE_LOGPROB),
        (change(tokens=pack_tokens([99, STOP])), Reason.TOKEN_OUT_OF_RANGE),
        (change(tokens=pack_tokens([1, 1])), Reason.WRONG_FINISH),
        (change(oldest_version=7, newest_version=7), Reason.FROM_THE_FUTURE),
        (change(group_id=999), Reason.UNKNOWN_PROMPT),
        (change(sample_index=9), Reason.UNKNOWN_PROMPT),
        (change(tokens=pack_tokens([UNSCORABLE_TOKEN, STOP])), Reason.UNSCORABLE),
    ],
)
async def test_a_bad_rollout_is_refused_with_its_reason_and_training_goes_on(
    tmp_path: Path, autojump_clock: MockClock, alter: Alter, reason: Reason
) -> None:
    async with open_world(tmp_path, config(num_steps=3)) as world:
        cheater, reply = await cheat(world, alter)
        world.start_node(2)
        with trio.fail_after(2000):
            await world.finished.wait()
        status = world.learner.status.status()

    assert {verdict.refusal for verdict in reply.verdicts} == {reason}
    assert all(verdict.detail for verdict in reply.verdicts)
    (line,) = [node for node in status.nodes if node.peer_id == cheater.peer]
    assert [count.reason for count in line.refusals] == [reason]
    assert line.last_refusal.startswith(f"{reason}: ")
    assert line.num_accepted == 0
    assert world.trainer.step == 3
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        (counted,) = db.execute(
            "SELECT num_refused FROM refusals WHERE peer = ? AND reason = ?",
            (cheater.peer, reason),
        ).fetchone()
    assert counted == line.refusals[0].count


async def leased(world: World) -> tuple[ScriptedNode, Lease]:
    """Return a node that holds a lease and will not work on it by itself."""
    node = world.start_node(1, generate_s=10_000.0)
    while not node.leases:  # noqa: ASYNC110
        await trio.sleep(0.1)
    return node, node.leases[0]


async def other(world: World) -> ScriptedNode:
    node = world.start_node(2, generate_s=10_000.0)
    await node.joined.wait()
    return node


async def test_an_unknown_lease_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path) as world:
        node, lease = await leased(world)
        reply = await node.submit("no-such-lease", node.rollouts_of(lease, 0))
        after = await node.submit(lease.lease_id, node.rollouts_of(lease, 0))

    assert (reply.refusal, reply.verdicts) == (Reason.UNKNOWN_LEASE, ())
    assert [verdict.refusal for verdict in after.verdicts] == [None, None]


async def test_the_lease_of_another_node_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        node, lease = await leased(world)
        thief = await other(world)
        reply = await thief.submit(lease.lease_id, thief.rollouts_of(lease, 0))
        returned = await thief.give_back(lease.lease_id)
        after = await node.submit(lease.lease_id, node.rollouts_of(lease, 0))

    assert reply.refusal is Reason.NOT_YOUR_LEASE
    assert returned.refusal is Reason.NOT_YOUR_LEASE
    assert [verdict.refusal for verdict in after.verdicts] == [None, None]


async def test_a_rollout_submitted_again_is_a_duplicate(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        node, lease = await leased(world)
        made = node.rollouts_of(lease, 0)
        twice_in_one = await node.submit(lease.lease_id, [made[0], made[0]])
        again = await node.submit(lease.lease_id, made)

    assert [v.refusal for v in twice_in_one.verdicts] == [None, Reason.DUPLICATE]
    assert [v.refusal for v in again.verdicts] == [Reason.DUPLICATE, None]


async def test_two_copies_at_the_same_time_are_taken_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        node, lease = await leased(world)
        made = node.rollouts_of(lease, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(node.submit, lease.lease_id, made)

    taken = [v for reply in node.replies for v in reply.verdicts if v.refusal is None]
    assert len(node.replies) == 4
    assert len(taken) == len(made)


async def test_a_version_older_than_leased_is_wrong(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=50)) as world:
        node = world.start_node(1, generate_s=1.0)
        while not node.leases or node.leases[-1].min_version < 2:  # noqa: ASYNC110
            await trio.sleep(0.1)
        node.alter = change(oldest_version=1, newest_version=2)
        before = len(node.replies)
        while len(node.replies) == before:  # noqa: ASYNC110
            await trio.sleep(0.1)

    assert {v.refusal for v in node.replies[-1].verdicts} == {Reason.WRONG_VERSION}


async def test_a_result_that_comes_after_its_last_usable_step_is_stale(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = config(num_steps=50, max_staleness=2, lease_timeout_s=1000.0)
    async with open_world(tmp_path, settings) as world:
        slow, lease = await leased(world)
        world.start_node(2, generate_s=1.0)
        while world.learner.dispatcher.next_step <= lease.deadline_step:  # noqa: ASYNC110
            await trio.sleep(0.1)
        reply = await slow.submit(lease.lease_id, slow.rollouts_of(lease, 0))

    assert {verdict.refusal for verdict in reply.verdicts} == {Reason.STALE}


async def test_who_never_sent_a_heartbeat_gets_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        node, lease = await leased(world)
        node.session_id = "session-9"
        asked = await node.ask(wait_s=0)
        submitted = await node.submit(lease.lease_id, node.rollouts_of(lease, 0))

    assert asked.refusal is Reason.NOT_A_MEMBER
    assert submitted.refusal is Reason.NOT_A_MEMBER


async def test_another_run_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path) as world:
        node, lease = await leased(world)
        asked = await node.ask(wait_s=0, run_id="other")
        submitted = await node.submit(lease.lease_id, node.rollouts_of(lease, 0), run_id="other")
        with pytest.raises(NetworkError):
            await node.heartbeat(run_id="other")

    assert asked.refusal is Reason.WRONG_RUN
    assert submitted.refusal is Reason.WRONG_RUN


async def test_the_advert_of_another_peer_in_a_heartbeat_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        node, _ = await leased(world)
        thief = await other(world)
        with pytest.raises(NetworkError):
            await thief.heartbeat(advert=node.advert())
        with pytest.raises(NetworkError):
            await thief.heartbeat(advert=b"garbage")

        assert (await thief.heartbeat()).learner_step == 0


async def test_what_others_refused_from_a_node_shows_at_that_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path) as world:
        node, _ = await leased(world)
        witness = await other(world)
        reports = (
            PeerReport(node.peer, Reason.BAD_CHUNK_HASH, 3),
            PeerReport(PeerId("12D3KooWnobody"), Reason.BAD_CHUNK_HASH, 1),
        )
        await witness.heartbeat(reports=reports)
        status = world.learner.status.status()

    (line,) = [line for line in status.nodes if line.peer_id == node.peer]
    assert [(c.reason, c.count) for c in line.refusals] == [(Reason.BAD_CHUNK_HASH, 3)]
    assert "reported by" in line.last_refusal


async def test_a_node_whose_rollouts_were_not_sampled_is_turned_away_and_training_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, config(num_steps=12)) as world:
        poisoner = world.start_node(1)
        await poisoner.joined.wait()
        world.trainer.evidence[poisoner.peer] = SampledBy(2, 0, 30.0, 0.0)
        world.start_node(2)
        with trio.fail_after(2000):
            await world.finished.wait()
        status = world.learner.status.status()
        trained = [
            {r.peer_id for g in batch for r in g.rollouts} for batch in world.trainer.batches
        ]

    (line,) = [node for node in status.nodes if node.peer_id == poisoner.peer]
    assert line.directive == "finished"
    assert Reason.NOT_SAMPLED in [count.reason for count in line.refusals]
    assert line.last_refusal.startswith("not_sampled: ")
    assert world.trainer.step == 12
    first = next(i for i, peers in enumerate(trained) if poisoner.peer in peers)
    # What was complete by then is still used.
    assert not any(poisoner.peer in peers for peers in trained[first + 5 :])
