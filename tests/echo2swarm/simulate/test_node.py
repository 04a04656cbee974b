"""One simulated node, against a learner that notes what it is told."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from echo2swarm.simulate.chance import Answers
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.node import SimNode, SimulatedSubmission
from echo2swarm.simulate.tables import AnswersTable, NodesTable
from protocols.ids import PeerId
from tests.echo2swarm.simulate.samples import lease


class FakeLearner:
    """Answers nothing by itself."""

    def __init__(self, engine: EventClock) -> None:
        self._engine = engine
        self.step = 0
        self.back_at_s = 0.0
        self.told: list[tuple[float, str, Any]] = []
        self.works: list[SimulatedSubmission] = []

    def _note(self, what: str, detail: object = None) -> None:
        self.told.append((round(self._engine.now_s, 3), what, detail))

    def of(self, what: str) -> list[tuple[float, Any]]:
        return [(at_s, detail) for at_s, name, detail in self.told if name == what]

    def joined(self, node: SimNode) -> None:
        self._note("joined")

    def left(self, node: SimNode) -> None:
        self._note("left")

    def applied(self, node: SimNode, version: int) -> None:
        self._note("applied", version)

    def asked(self, node: SimNode, version: int, ask_round: int) -> None:
        self._note("asked", version)

    def given_back(self, node: SimNode, lease_id: str) -> None:
        self._note("given_back", lease_id)

    def submitted(self, node: SimNode, work: SimulatedSubmission) -> None:
        self.works.append(work)
        self._note("submitted", work.part.lease_id)


class World:
    """A node that is up, active, and has applied version 0 by 3.0 s."""

    def __init__(self, **keys: object) -> None:
        self.engine = EventClock()
        self.learner = FakeLearner(self.engine)
        table = {"name": "node", "rollouts_per_s": 1.0, "startup_s": 1.0, "rtt_s": 0.2, **keys}
        kind = msgspec.convert(table, NodesTable)
        self.node = SimNode(
            PeerId("node-0"),
            kind,
            tokens_per_s=10.0,
            usd_per_hour=0.0,
            judge_s=0.0,
            answers=Answers(AnswersTable(mean_tokens=10.0), seed=0),
            engine=self.engine,
            learner=self.learner,
            rng=random.Random(0),
        )
        self.node.boot()
        self.node.offered(1, 0, 2.0)
        self.node.directed(1, is_active=True)

    def at(self, when_s: float, call: Callable[..., object], *args: object) -> None:
        def happen() -> None:
            call(*args)

        self.engine.at(when_s, happen)

    def run(self) -> FakeLearner:
        self.engine.run()
        return self.learner


def test_it_asks_for_two_leases_once_a_version_is_applied() -> None:
    learner = World(load_s=1.0).run()

    assert learner.of("applied") == [(3.1, 0)]
    assert learner.of("asked") == [(3.1, 0), (3.1, 0)]


def test_a_batch_takes_as_long_as_its_answers_together() -> None:
    world = World(load_s=0.0)
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1"))

    assert world.run().of("submitted") == [(9.1, "lease-1")]  # four answers of a second each


def test_or_as_long_as_its_longest_answer_with_others_beside_it() -> None:
    world = World(load_s=0.0, batching="longest", concurrency=4)
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1"))

    assert world.run().of("submitted") == [(9.1, "lease-1")]  # at a fourth of its speed each


def test_a_newer_version_is_applied_between_batches() -> None:
    world = World(load_s=1.0)
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1"))
    world.at(6.0, world.node.offered, 1, 1, 0.5)
    learner = world.run()

    assert learner.of("submitted") == [(9.1, "lease-1")]
    assert learner.of("applied") == [(3.1, 0), (10.1, 1)]


def test_a_transfer_that_is_over_half_done_is_finished_first() -> None:
    world = World(load_s=0.0)
    world.at(10.0, world.node.offered, 1, 1, 4.0)
    world.at(13.0, world.node.offered, 1, 2, 4.0)

    assert world.run().of("applied") == [(2.1, 0), (14.1, 1), (18.1, 2)]


def test_a_transfer_that_has_just_begun_is_given_up_for_a_newer_one() -> None:
    world = World(load_s=0.0)
    world.at(10.0, world.node.offered, 1, 1, 4.0)
    world.at(11.0, world.node.offered, 1, 2, 4.0)

    assert world.run().of("applied") == [(2.1, 0), (15.1, 2)]


def test_what_the_learner_gave_up_on_is_neither_finished_nor_waited_for() -> None:
    world = World(load_s=0.0)
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1", num_groups=200, deadline_step=0))
    world.at(6.0, setattr, world.learner, "step", 1)
    learner = world.run()

    assert learner.of("submitted") == []
    assert len(learner.of("asked")) == 3  # once more in its place


def test_a_lease_that_comes_when_none_is_wanted_goes_back() -> None:
    world = World(load_s=0.0)
    world.at(5.0, lambda: world.node.directed(1, is_active=False))
    world.at(6.0, world.node.granted, 1, 1, 0, lease("lease-1"))

    assert world.run().of("given_back") == [(6.1, "lease-1")]


def test_one_that_leaves_finishes_what_is_begun_and_says_goodbye() -> None:
    world = World(load_s=0.0)
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1"))
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-2"))
    world.at(6.0, world.node.leave)
    world.at(9.5, world.node.judged, 1, "lease-1", 4)
    learner = world.run()

    assert learner.of("given_back") == [(6.1, "lease-2")]
    assert learner.of("submitted") == [(9.1, "lease-1")]
    assert learner.of("left") == [(9.6, None)]


def test_an_answer_to_a_void_question_does_not_stand_for_a_new_one() -> None:
    world = World(load_s=0.0)
    world.at(5.0, lambda: world.node.directed(1, is_active=False))
    world.at(6.0, lambda: world.node.directed(1, is_active=True))
    world.at(7.0, world.node.granted, 1, 1, 0, lease("lease-1"))
    learner = world.run()

    assert len(learner.of("asked")) == 4  # two each time, and none for the lease in hand


def test_the_engine_waits_while_as_many_submissions_wait_as_at_a_live_node() -> None:
    # An engine of no time at all, and a second for every submission; each batch is one group.
    world = World(load_s=0.0, rtt_s=1.0, concurrency=4)
    world.node.tokens_per_s = 1e9
    world.at(10.0, world.node.granted, 1, 1, 0, lease("lease-1", num_groups=20))
    world.at(10.5, world.node.offered, 1, 1, 0.1)
    learner = world.run()

    submitted = [at_s for at_s, _ in learner.of("submitted")]
    assert submitted == [10.5 + i for i in range(20)]
    # One is under way, four wait, and the sixth waits with the engine for room behind them. Then
    # the engine is free, and takes the new version before it samples more.
    assert sum(work.version == 0 for work in learner.works) == 5 + 1
    assert learner.of("applied")[-1] == (11.5, 1)


def test_one_that_vanishes_says_nothing_more() -> None:
    world = World(load_s=0.0)
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1"))
    world.at(6.0, world.node.vanish)

    assert world.run().of("submitted") == []


def test_what_is_said_while_the_learner_is_away_is_said_again_when_it_is_back() -> None:
    world = World(load_s=0.0)
    world.learner.back_at_s = 20.0
    learner = world.run()

    assert all(at_s >= 20.0 for at_s, _ in learner.of("asked"))
    assert len(learner.of("asked")) == 2


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_change_of_speed_counts_from_the_next_batch_on(factor: float) -> None:
    world = World(load_s=0.0)
    world.node.speed_factor = factor
    world.at(5.0, world.node.granted, 1, 1, 0, lease("lease-1"))

    assert world.run().of("submitted") == [(5.1 + 4.0 / factor, "lease-1")]
