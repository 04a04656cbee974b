"""Whole swarms: a learner and nodes as processes, real libp2p on loopback, real training."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from echo2swarm.system.identity import load_or_create
from learner.config import TrackingConfig, TrainerConfig
from learner.demo.swarm import LocalSwarm, open_swarm
from learner.run.restarts import MAX_RESTARTS
from protocols import ticket as ticket_protocol
from protocols.heartbeat import NodeState
from protocols.leases import Lease
from protocols.packed import pack_floats, pack_tokens
from protocols.reasons import Reason
from protocols.rollouts import FinishReason, Rollout
from protocols.status import StatusReply
from protocols.ticket import Ticket
from tests.e2e.swarms import (
    JOIN_S,
    active,
    free_port,
    is_listening,
    loaded_libraries,
    no_update_before,
    open_impostor,
    read_ticket,
    tiny_config,
)
from tests.event_files import points_in
from tests.processes import command_line, is_zombie

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NAMES = ("ada", "bob", "cyd")


def staleness_in_ledger(swarm: LocalSwarm) -> dict[int, int]:
    """Count trained rollouts by staleness, from what the ledger says of each."""
    with closing(sqlite3.connect(swarm.run_dir / "ledger.sqlite")) as ledger:
        rows = ledger.execute(
            "SELECT trained_step - version, COUNT(*) FROM rollouts "
            "WHERE trained_step IS NOT NULL GROUP BY 1"
        )
        return {int(staleness): int(count) for staleness, count in rows}


async def start_three_nodes(swarm: LocalSwarm, ticket: str) -> None:
    for name in NAMES:
        await swarm.start_node(name, ticket, arguments=("--listen", "/ip4/127.0.0.1/tcp/0"))


async def test_a_swarm_trains_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_swarm(tmp_path / "a swarm") as swarm:
        ticket = await swarm.start_learner(tiny_config(num_steps=12))
        async with no_update_before(swarm, NAMES):
            await start_three_nodes(swarm, ticket)
        await swarm.wait_status(lambda s: s.learner_step >= 2, timeout_s=JOIN_S, what="two steps")
        for process in swarm.processes:
            assert "libtorch" not in loaded_libraries(process.pid), (
                f"{process.name} has torch loaded"
            )
        with trio.fail_after(200):
            statuses = [await process.wait() for process in swarm.processes]
        status = swarm.status()
        left = swarm.pids()

    assert statuses == [0, 0, 0, 0]
    assert left == []
    assert status is not None
    assert (status.phase, status.learner_step) == ("finished", 12)
    assert len(swarm.metrics()) == 12
    staleness = staleness_in_ledger(swarm)
    assert sum(staleness.values()) == 12 * 8 * 8
    assert max(staleness) <= 2
    assert all(node.num_accepted > 0 for node in status.nodes)
    assert not list(swarm.root.rglob("*.tmp"))


async def test_with_no_staleness_allowed_every_rollout_is_on_policy(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(tiny_config(num_steps=6, max_staleness=0))
        await start_three_nodes(swarm, ticket)
        with trio.fail_after(200):
            assert await swarm.learner.wait() == 0

    assert staleness_in_ledger(swarm) == {0: 6 * 8 * 8}


async def test_a_killed_node_is_replaced_by_others_and_comes_back_as_itself(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(tiny_config(num_steps=400, lease_timeout_s=5))
        await start_three_nodes(swarm, ticket)
        await swarm.wait_status(
            lambda s: len(active(s)) == 3 and s.learner_step >= 2,
            timeout_s=JOIN_S,
            what="three active nodes",
        )
        victim = next(p for p in swarm.processes if p.name == "bob")
        victim.kill()
        killed_at = swarm.status()
        assert killed_at is not None
        later = await swarm.wait_status(
            lambda s: s.learner_step >= killed_at.learner_step + 5 and "bob" not in active(s),
            timeout_s=JOIN_S,
            what="training to go on without the node",
        )
        await swarm.start_node("bob", ticket, arguments=("--listen", "/ip4/127.0.0.1/tcp/0"))
        back = await swarm.wait_status(
            lambda s: len(active(s)) == 3, timeout_s=JOIN_S, what="the node to be back"
        )

    assert len(later.nodes) == 3
    assert len(back.nodes) == 3, "the node that came back is shown once"


async def test_a_killed_engine_is_restarted_and_the_node_stays(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(tiny_config(num_steps=400, lease_timeout_s=5))
        node = await swarm.start_node("ada", ticket)
        before = await swarm.wait_status(
            lambda s: len(active(s)) == 1 and s.learner_step >= 2,
            timeout_s=JOIN_S,
            what="an active node",
        )
        engine = next(pid for pid in swarm.pids() if "node.engine" in command_line(pid))
        os.kill(engine, signal.SIGKILL)
        after = await swarm.wait_status(
            lambda s: (
                s.learner_step >= before.learner_step + 5 and s.nodes[0].num_engine_restarts == 1
            ),
            timeout_s=JOIN_S,
            what="training with a new engine",
        )
        assert node.is_running

    assert len(after.nodes) == 1


async def test_a_node_with_two_engines_works_on_while_one_is_started_again(tmp_path: Path) -> None:
    config = tiny_config(num_steps=400, trainer=TrainerConfig(kind="sleep", train_s=0.2))
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(config)
        node = await swarm.start_node("ada", ticket, engine="sleep", arguments=("--engines", "2"))
        # Only with both at work the death of one leaves another.
        await swarm.wait_for(
            lambda: node.log_path.read_text().count("engine.ready") == 2 or None,
            timeout_s=JOIN_S,
            what="both engines",
        )
        before = await swarm.wait_status(
            lambda s: s.learner_step >= 3, timeout_s=JOIN_S, what="three steps"
        )
        engines = [pid for pid in swarm.pids() if "node.engine" in command_line(pid)]
        os.kill(engines[0], signal.SIGKILL)
        after = await swarm.wait_status(
            lambda s: (
                s.nodes[0].num_engine_restarts == 1 and s.learner_step >= before.learner_step + 5
            ),
            timeout_s=JOIN_S,
            what="training with a new engine",
        )
        states = [e["state"] for e in swarm.events("node.state") if e["name"] == "ada"]

    assert len(engines) == 2
    assert after.nodes[0].num_accepted > before.nodes[0].num_accepted
    # It never stopped to be of use.
    assert states.count(NodeState.ACTIVE) == 1


async def test_a_trainer_may_die_again_and_again_while_updates_are_made_in_between(
    tmp_path: Path,
) -> None:
    # No checkpoint before the end: every new trainer makes the recorded updates again.
    config = tiny_config(
        num_steps=400, lease_timeout_s=5, trainer=TrainerConfig(kind="sleep", train_s=0.1)
    )
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(config)
        await swarm.start_node("ada", ticket)
        dead: set[int] = set()
        for _ in range(MAX_RESTARTS + 1):
            trainer = await new_trainer(swarm, dead)
            # Not before it is at work: what the dead one had made may show only now.
            step = step_of(swarm)
            await swarm.wait_status(
                partial(has_passed, step), timeout_s=JOIN_S, what=f"an update after {step}"
            )
            os.kill(trainer, signal.SIGKILL)
            dead.add(trainer)
        await new_trainer(swarm, dead)
        step = step_of(swarm)
        await swarm.wait_status(
            partial(has_passed, step), timeout_s=JOIN_S, what="updates after the last death"
        )
        lost = swarm.events("trainer.lost")
        ticket_at_last = swarm.ticket_path.read_text()

    assert read_ticket(ticket_at_last).addresses == read_ticket(ticket).addresses
    assert len(lost) == MAX_RESTARTS + 1
    assert [event["step"] for event in lost] == sorted({event["step"] for event in lost})


async def test_a_learner_that_was_told_to_stop_does_not_start_a_dead_trainer_again(
    tmp_path: Path,
) -> None:
    config = tiny_config(num_steps=400, trainer=TrainerConfig(kind="sleep", train_s=0.1))
    async with open_swarm(tmp_path) as swarm:
        await swarm.start_node("ada", await swarm.start_learner(config))
        await swarm.wait_status(partial(has_passed, 1), timeout_s=JOIN_S, what="two updates")
        trainer = next(pid for pid in swarm.pids() if "learner.trainer" in command_line(pid))
        # Stopped meanwhile, so that it hears of both at once.
        os.kill(swarm.learner.pid, signal.SIGSTOP)
        os.kill(trainer, signal.SIGKILL)
        with trio.fail_after(60):
            while not is_zombie(trainer):  # noqa: ASYNC110 - it is no child of ours
                await trio.sleep(0.02)
        os.kill(swarm.learner.pid, signal.SIGINT)
        os.kill(swarm.learner.pid, signal.SIGCONT)
        with trio.fail_after(60):
            status = await swarm.learner.wait()
        starts, lost = swarm.events("trainer.started"), swarm.events("trainer.lost")

    assert status == 130
    assert len(starts) == 1
    assert "without a checkpoint" in lost[0]["next"]


def step_of(swarm: LocalSwarm) -> int:
    status = swarm.status()
    assert status is not None
    return status.learner_step


async def new_trainer(swarm: LocalSwarm, dead: Collection[int]) -> int:
    """Return the trainer's process once there is one that isn't among the dead."""
    with trio.fail_after(JOIN_S):
        while True:
            for pid in swarm.pids():
                if pid not in dead and "learner.trainer" in command_line(pid):
                    return pid
            await trio.sleep(0.05)


def has_passed(step: int, status: StatusReply) -> bool:
    return status.learner_step > step


async def test_a_ticket_with_only_another_nodes_address_leads_to_the_learner(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        line = await swarm.start_learner(tiny_config(num_steps=400))
        port = free_port()
        await swarm.start_node("ada", line, arguments=("--listen", f"/ip4/127.0.0.1/tcp/{port}"))
        first = await swarm.wait_status(
            lambda s: len(active(s)) == 1, timeout_s=JOIN_S, what="the first node"
        )
        ticket = read_ticket(line)
        indirect = ticket_protocol.format_ticket(
            Ticket(
                run_id=ticket.run_id,
                learner_key=ticket.learner_key,
                addresses=(
                    # The learner as it is not: nobody listens there.
                    f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{ticket.learner_peer}",
                    f"/ip4/127.0.0.1/tcp/{port}/p2p/{first.nodes[0].peer_id}",
                ),
                expires_unix_s=int(time.time()) + 3600,
            ),
            load_or_create(find_identity(swarm.run_dir)).key,
        )
        await swarm.start_node("bob", indirect)
        status = await swarm.wait_status(
            lambda s: {"ada", "bob"} <= active(s), timeout_s=JOIN_S, what="the second node"
        )

    assert len(status.nodes) == 2


def find_identity(run_dir: Path) -> Path:
    return next(run_dir.rglob("identity*"))


async def test_each_bad_rollout_is_refused_with_its_reason_and_nobody_else_is_disturbed(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        line = await swarm.start_learner(tiny_config(num_steps=400))
        await swarm.start_node("honest", line)
        await swarm.wait_status(
            lambda s: s.learner_step >= 2, timeout_s=JOIN_S, what="an honest node at work"
        )
        async with open_impostor(read_ticket(line)) as impostor:
            reply = await impostor.heartbeat(state=NodeState.STANDBY, applied_version=0)
            newest = reply.newest_version
            with trio.fail_after(JOIN_S):
                await impostor.wait_active(newest)

            def rollout(
                lease: Lease,
                tokens: list[int] | None = None,
                logprobs: list[float] | None = None,
                *,
                version: int | None = None,
                finish: FinishReason = FinishReason.LENGTH,
                group_id: int | None = None,
            ) -> Rollout:
                wanted = lease.sampling.max_new_tokens
                group = lease.groups[0]
                version = lease.min_version if version is None else version
                return Rollout(
                    group_id=group.group_id if group_id is None else group_id,
                    sample_index=group.samples[0].index,
                    oldest_version=version,
                    newest_version=version,
                    tokens=pack_tokens([4] * wanted if tokens is None else tokens),
                    logprobs=pack_floats([-1.0] * wanted if logprobs is None else logprobs),
                    finish_reason=finish,
                )

            expected: dict[Reason, Callable[[Lease], Rollout]] = {
                Reason.FROM_THE_FUTURE: partial(rollout, version=10_000),
                Reason.WRONG_SHAPE: partial(rollout, logprobs=[-1.0]),
                Reason.NON_FINITE_LOGPROB: partial(rollout, logprobs=[float("nan")] * 6),
                Reason.POSITIVE_LOGPROB: partial(rollout, logprobs=[0.5] * 6),
                Reason.TOKEN_OUT_OF_RANGE: partial(rollout, tokens=[4000] * 6),
                Reason.WRONG_FINISH: partial(rollout, finish=FinishReason.STOP),
                Reason.UNKNOWN_PROMPT: partial(rollout, group_id=10**9),
            }
            got: dict[Reason, Reason | None] = {}
            for reason, bad in expected.items():
                got[reason] = Reason.STALE
                with trio.fail_after(JOIN_S):
                    # Where this machine was busy, training may have gone on meanwhile.
                    while got[reason] is Reason.STALE:
                        # Each in a lease of its own: a new node is not given much at a time.
                        lease, newest = await impostor.lease()
                        answer = await impostor.submit(lease.lease_id, bad(lease))
                        got[reason] = answer.refusal or answer.verdicts[0].refusal
                        await impostor.give_back(lease)
            lease, newest = await impostor.lease()
            unknown = await impostor.submit("no-such-lease", rollout(lease))
            await impostor.heartbeat(state=NodeState.ACTIVE, applied_version=newest)
            seen = await swarm.wait_status(
                lambda s: reasons_of("impostor", s) >= set(expected),
                timeout_s=JOIN_S,
                what="the refusals in the status",
            )
        trained = await swarm.wait_status(
            lambda s: s.learner_step >= seen.learner_step + 3,
            timeout_s=JOIN_S,
            what="training to go on",
        )

    assert got == {reason: reason for reason in expected}
    assert (unknown.refusal or unknown.verdicts[0].refusal) == Reason.UNKNOWN_LEASE
    honest = next(n for n in trained.nodes if n.name == "honest")
    assert honest.refusals == ()


async def test_an_interrupted_learner_ends_its_children_frees_its_port_and_can_resume(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        port = free_port()
        tiny = tiny_config(num_steps=400)
        listen = (f"/ip4/127.0.0.1/tcp/{port}",)
        config = msgspec.structs.replace(
            tiny,
            swarm=msgspec.structs.replace(tiny.swarm, listen=listen),
            tracking=TrackingConfig(tensorboard=True),
        )
        line = await swarm.start_learner(config)
        await swarm.start_node("ada", line)
        await swarm.wait_status(lambda s: s.learner_step >= 3, timeout_s=JOIN_S, what="three steps")
        swarm.learner.interrupt()
        with trio.fail_after(60):
            first_exit = await swarm.learner.wait()
        stopped = swarm.status()
        assert stopped is not None
        assert not is_listening(port)
        await swarm.start_learner(config, arguments=("--resume",))
        resumed = await swarm.wait_status(
            lambda s: s.learner_step >= stopped.learner_step + 3,
            timeout_s=JOIN_S,
            what="training after the resumption, with the same node",
        )
        swarm.learner.interrupt()
        await swarm.learner.wait()

    assert first_exit == 130
    assert [n.name for n in resumed.nodes if n.is_connected] == ["ada"]
    assert max(staleness_in_ledger(swarm)) <= 2
    points = points_in(swarm.run_dir / "tensorboard")
    assert [step for step, _, _ in points] == [line["step"] for line in swarm.metrics()]


async def test_spoiled_chunks_and_forged_manifests_are_refused_and_told_of(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        # So slow that the node asks others too before it has everything from the learner.
        line = await swarm.start_learner(tiny_config(num_steps=400, upload_mbit=0.5))
        async with open_impostor(read_ticket(line)) as impostor, trio.open_nursery() as nursery:
            genuine = await impostor.manifest()
            impostor.serve_spoiled_chunks(genuine.weights.chunk_bytes)

            async def pretend() -> None:
                while True:
                    await impostor.heartbeat(state=NodeState.STANDBY, applied_version=0)
                    await impostor.forge(genuine)
                    await trio.sleep(0.5)

            nursery.start_soon(pretend)
            honest = await swarm.start_node("honest", line)
            learner_log = tmp_path / "logs" / "learner.log"
            seen = await swarm.wait_status(
                lambda s: (
                    Reason.BAD_CHUNK_HASH in reasons_of("impostor", s)
                    and "gossip.shut_out" in learner_log.read_text()
                ),
                timeout_s=JOIN_S,
                what="the spoiled chunks in the status, and the forger shut out of gossip",
            )
            later = await swarm.wait_status(
                lambda s: s.learner_step >= seen.learner_step + 3,
                timeout_s=JOIN_S,
                what="training to go on",
            )
            nursery.cancel_scope.cancel()
        log = honest.log_path.read_text()

    assert reasons_of("honest", later) == set()
    assert "bad_chunk_hash" in log
    # Forged manifests go no further than the first who hears them, and change nothing.
    assert "version=1000" not in log


def reasons_of(name: str, status: StatusReply) -> set[Reason]:
    return {r.reason for n in status.nodes if n.name == name for r in n.refusals}
