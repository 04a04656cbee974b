"""A node's services around fakes, on the in-memory network."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio
from structlog.typing import EventDict

from echo2swarm.network.base import PeerInfo
from echo2swarm.network.memory import MemoryHub
from echo2swarm.network.memory_node import MemoryNetwork
from node.engine.base import RolloutEngine
from node.learner_calls import LearnerCalls
from node.life import Life
from node.membership import Membership, NodeReport
from node.trouble import trouble_of
from node.worker import Worker
from protocols.activation import PeerReport
from protocols.ids import PolicyVersion, peer_id_of
from protocols.lifecycle import Drained, EngineDied, PolicyApplied, StopRequested
from tests.node.fakes import RUN, FakeEngine, FakeLearner, FakePolicies, make_key

LEARNER_AT = "/ip4/10.9.9.9/tcp/4001"
LEARNER = peer_id_of(make_key(1).public_key())


@dataclass
class Bench:
    """Everything a test may want to look at or turn."""

    hub: MemoryHub
    network: MemoryNetwork
    learner: FakeLearner
    engine: FakeEngine
    policies: FakePolicies
    life: Life
    worker: Worker
    membership: Membership
    faults: list[PeerReport]
    logged: list[EventDict]

    def stop(self) -> None:
        self.life.happened(StopRequested())

    def engine_dies(self) -> None:
        self.engine.die()
        self.life.happened(EngineDied("killed"))
        self.worker.engine_changed()

    def engine_comes_back(self) -> None:
        self.engine.come_back()
        self.worker.engine_changed()

    def events(self, name: str) -> list[EventDict]:
        return [event for event in self.logged if event["event"] == name]


@asynccontextmanager
async def open_bench(
    learner: FakeLearner | None = None,
    *,
    max_batch: int = 8,
    hub: MemoryHub | None = None,
    is_continuous: bool = False,
    real_engine: RolloutEngine | None = None,
) -> AsyncIterator[Bench]:
    """Start a node's services, connected to a learner that is there already.

    With a real engine, what happens to that is for the caller to tell.
    """
    learner = learner or FakeLearner()
    hub = hub or MemoryHub(0)
    with structlog.testing.capture_logs() as logged:
        async with (
            hub.network(make_key(1), address=LEARNER_AT) as theirs,
            hub.network(make_key(2)) as network,
        ):
            learner.serve(theirs)
            await network.connect(PeerInfo(peer=LEARNER, addresses=(LEARNER_AT,)))
            fake = FakeEngine(is_continuous=is_continuous)
            engine = real_engine or fake
            policies, life = FakePolicies(), Life()
            faults: list[PeerReport] = []

            def take_faults() -> tuple[PeerReport, ...]:
                taken = tuple(faults)
                faults.clear()
                return taken

            def report() -> NodeReport:
                held = policies.held
                return NodeReport(
                    state=life.state,
                    applied_version=engine.applied_version,
                    held_version=None if held is None else held.version,
                    num_rollouts_in_hand=worker.num_rollouts_in_hand,
                    num_engine_restarts=engine.num_restarts,
                    payload_bytes_sent=0,
                    payload_bytes_received=0,
                    calibrated_tokens_per_s=worker.calibrated_tokens_per_s,
                    trouble=trouble_of(worker.errors),
                )

            def on_applied(version: PolicyVersion) -> None:
                life.happened(PolicyApplied(version))
                membership.announce()

            membership = Membership(
                network,
                run_id=RUN,
                learner=LEARNER,
                session_id="session-1",
                sealed_advert=lambda: b"advert",
                report=report,
                take_faults=take_faults,
                on_event=life.happened,
                on_reply=lambda reply: worker.step_heard(reply.learner_step),
                rng=random.Random(0),
            )
            worker = Worker(
                LearnerCalls(network, learner=LEARNER, run_id=RUN, session_id="session-1"),
                engine,
                policies,
                max_batch=max_batch,
                on_applied=on_applied,
                on_drained=lambda: life.happened(Drained()),
                on_doubt=membership.announce,
                on_calibrated=membership.announce,
                is_learner_silent=lambda: membership.is_failing,
                on_trouble=membership.announce,
                rng=random.Random(0),
            )
            life.attach(_Parts(membership, worker))
            bench = Bench(
                hub,
                network,
                learner,
                fake,
                policies,
                life,
                worker,
                membership,
                faults,
                logged,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(membership.run)
                nursery.start_soon(worker.run)
                yield bench
                nursery.cancel_scope.cancel()


class _Parts:
    def __init__(self, membership: Membership, worker: Worker) -> None:
        self.announce = membership.announce
        self.take_work = worker.take_work
        self.stop_taking_work = worker.stop_taking_work
        self.hand_back = worker.hand_back
        self.pause = worker.pause
        self.drain = worker.drain
