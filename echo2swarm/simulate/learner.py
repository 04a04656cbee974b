"""The simulated learner's loop: waits for a batch, trains, writes, publishes.

In the order and with the waits of the live one: publishing goes on beside the next update, one
version at a time, and a publication that takes longer than an update holds the trainer up.
"""

import random
from collections import Counter
from collections.abc import Callable

from echo2swarm.scheduling.leases.batcher import TrainingBatch
from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.groups import DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseState
from echo2swarm.simulate.accounts import Accounts, StepEntry
from echo2swarm.simulate.chance import lognormal_factor, sigma_of
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.lease_desk import SimulatedLeaseDesk
from echo2swarm.simulate.measures import Measures
from echo2swarm.simulate.tables import Scenario
from echo2swarm.system.rates import LearnerPhase
from protocols.ids import PolicyVersion


class SimulatedLoop:
    """From batch to batch until all steps are done.

    Args:
        scenario: what is simulated.
        engine: the clock.
        dispatcher: the real one.
        desk: leases.
        accounts: what is counted.
        measures: what is measured.
        rng: for the spread of training times.
        broadcast: brings a version to the nodes.
        describe: fills in what a step's entry says of the nodes.
        on_end: told why it ends.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: EventClock,
        dispatcher: Dispatcher,
        desk: SimulatedLeaseDesk,
        *,
        accounts: Accounts,
        measures: Measures,
        rng: random.Random,
        broadcast: Callable[[int], None],
        describe: Callable[[StepEntry], None],
        on_end: Callable[[], None],
    ) -> None:
        self._table = scenario.learner
        self._run = scenario.run
        self._engine = engine
        self._dispatcher = dispatcher
        self._desk = desk
        self._accounts = accounts
        self._measures = measures
        self._rng = rng
        self._broadcast = broadcast
        self._describe = describe
        self._on_end = on_end
        self._train_sigma = sigma_of(self._table.train_cv)
        self._phase = LearnerPhase.STARTING
        self.step = 0
        """Updates done."""
        self.back_at_s = 0.0
        self.published_at_s: dict[int, float] = {}
        self._life = 0
        self._since_s = self._away_since_s = 0.0
        self._batch: TrainingBatch | None = None
        self._is_publishing = False
        self._queued: int | None = None
        self._blocked: int | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for rollouts."""
        return self._phase is LearnerPhase.WAITING and self._batch is None

    @property
    def is_away(self) -> bool:
        """Whether it is down."""
        return self._engine.now_s < self.back_at_s

    def start(self) -> None:
        """Publish the first version, and wait for the first batch."""
        self._publish(0)
        self._wait()

    def look(self) -> None:
        """Train, if it waits and a batch is complete."""
        if not self.is_waiting or self.is_away:
            return
        dispatcher = self._dispatcher
        formed = dispatcher.form(self._engine.now_s)
        drops = [dispatcher.drop(group.group_id, DropReason.STALE) for group in formed.stale]
        if formed.batch is not None:
            dispatcher.take(formed.batch.groups)
            drops += dispatcher.advance(self.step + 1, self._engine.now_s)
            self._batch = formed.batch
        self._desk.note_drops(drops)
        if formed.batch is not None:
            self._desk.end_overdue()
            self._train()
        if formed.batch is not None or drops:
            self._desk.serve_waiting()

    def go_away(self, for_s: float) -> None:
        """Be killed, and start again after ``for_s``; the update that is made is lost."""
        now_s = self._engine.now_s
        replay_s = (self.step % self._table.checkpoint_every) * self._table.train_s
        self.back_at_s = max(self.back_at_s, now_s + for_s + self._table.restart_s + replay_s)
        self._life += 1
        self._away_since_s = self._enter(LearnerPhase.STARTING)
        self._engine.at(self.back_at_s, self._come_back, self._life)

    # Inside.

    def _come_back(self, life: int) -> None:
        if life != self._life:
            return
        self._accounts.away_s += self._engine.now_s - self._away_since_s
        for lease in self._dispatcher.leases.active:
            self._desk.end(lease, LeaseState.RESTARTED)
        # As after every start, of whatever step: nodes may have missed the last one.
        self._queued = self._blocked = None
        self._publish(self.step)
        self._since_s = self._engine.now_s
        if self._batch is not None:
            self._train()
        else:
            self._wait()
        self._desk.serve_waiting()

    def _wait(self) -> None:
        self._since_s = self._enter(LearnerPhase.WAITING)
        self._engine.after(self._run.give_up_s, self._give_up, self.step, self._since_s)
        self.look()

    def _give_up(self, step: int, since_s: float) -> None:
        if self.is_waiting and self.step == step and self._since_s == since_s:
            self._on_end()

    def _train(self) -> None:
        batch = self._batch
        if batch is None:
            raise AssertionError("there is nothing to train on")
        batch.assert_fresh(max_staleness=self._table.max_staleness)
        wait_s = self._engine.now_s - self._since_s
        self._enter(LearnerPhase.TRAINING)
        factor = (
            lognormal_factor(self._train_sigma, self._rng.gauss(0, 1)) if self._train_sigma else 1.0
        )
        train_s = self._table.train_s * factor
        self._engine.after(train_s, self._trained, self._life, batch, wait_s, train_s)

    def _trained(self, life: int, batch: TrainingBatch, wait_s: float, train_s: float) -> None:
        if life != self._life:
            return
        now_s = self._engine.now_s
        for group in batch.groups:
            self._accounts.trained(group, batch.step)
        self._batch = None
        self.step += 1
        self._measures.train_s.add(train_s, now_s)
        entry = StepEntry(
            step=self.step,
            end_s=now_s,
            wait_s=wait_s,
            train_s=train_s,
            staleness=tuple(sorted(Counter(batch.staleness()).items())),
        )
        self._accounts.steps.append(entry)
        self._describe(entry)
        if self.step >= self._run.num_steps:
            self._enter(LearnerPhase.FINISHED)
            self._on_end()
        elif self.step % self._table.publish_every == 0:
            self._enter(LearnerPhase.PUBLISHING)
            entry.write_s = self._table.write_s
            self._engine.after(self._table.write_s, self._written, life, self.step)
        else:
            self._wait()

    def _written(self, life: int, version: int) -> None:
        if life != self._life:
            return
        if not self._is_publishing:
            self._publish(version)
        elif self._queued is None:
            self._queued = version
        else:
            self._blocked = version  # the trainer waits until the one before is out
            return
        self._wait()

    def _publish(self, version: int) -> None:
        self._is_publishing = True
        self.published_at_s[version] = self._engine.now_s
        self._engine.after(self._table.publish_s, self._published, self._life, version)

    def _published(self, life: int, version: int) -> None:
        if life != self._life:
            return
        self._is_publishing = False
        self._dispatcher.version_published(PolicyVersion(version), self._engine.now_s)
        self._broadcast(version)
        queued, blocked = self._queued, self._blocked
        self._queued, self._blocked = blocked, None
        if queued is not None:
            self._publish(queued)
        if blocked is not None:
            self._wait()
        self._desk.serve_waiting()

    def _enter(self, phase: LearnerPhase) -> float:
        self._phase = phase
        return self._engine.now_s
