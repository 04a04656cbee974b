"""A swarm as events, one rollout at a time: what the formulas are held against.

It knows nothing of them. Machines take one rollout after the other, each sampled with the
newest version that has arrived; a machine that finds nothing worth leasing waits. The
learner takes the oldest usable rollouts, and publishes every ``every`` steps.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One swarm; times in seconds."""

    per_step: int
    train_s: float
    bound: int
    every: int
    broadcast_s: float
    trip_s: float
    """From finished on the machine to known to the learner."""
    work_s: Callable[[], float]
    """Of the next rollout."""
    num_machines: int
    is_paced: bool = True
    joining_s: float = 0.0
    """Machines join one by one within this time."""
    num_steps: int = 240
    pause_s: float = 0.0
    """The last part of a broadcast, in which no machine begins anything."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What happened in the second half."""

    period_s: float
    longest_wait_s: float
    num_made: int
    num_expired: int


def run(setup: Setup) -> Seen:
    """Let the swarm run from version 0, which everybody has."""
    return _Swarm(setup).run()


class _Swarm:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.now_s = 0.0
        self.num_events = itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.applied = 0
        self.num_taken = 0
        """Steps that have their batch."""
        self.is_training = False
        self.idle = 0
        self.in_flight = 0
        self.num_pauses = 0
        """Versions being loaded: meanwhile no machine begins anything."""
        self.arrived: list[tuple[int, int]] = []
        """(version, order of arrival), oldest version first."""
        self.waiting_since_s = 0.0
        self.ends_s: list[float] = []
        self.waits_s: list[float] = []
        self.made: list[int] = []
        """Steps taken when each rollout arrived."""
        self.expired: list[int] = []

    def run(self) -> Seen:
        for i in range(self.setup.num_machines):
            self.after(i / self.setup.num_machines * self.setup.joining_s, self.join)
        while len(self.ends_s) < self.setup.num_steps:
            self.now_s, _, act = heapq.heappop(self.events)
            act()
        half = self.setup.num_steps // 2
        half -= half % self.setup.every
        last = self.setup.num_steps - self.setup.num_steps % self.setup.every
        return Seen(
            period_s=(self.ends_s[last - 1] - self.ends_s[half - 1]) / (last - half),
            longest_wait_s=max(self.waits_s[half:last]),
            num_made=sum(at >= half for at in self.made),
            num_expired=sum(at >= half for at in self.expired),
        )

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now_s + delay_s, next(self.num_events), act))

    def join(self) -> None:
        self.idle += 1
        self.lease()

    def lease(self) -> None:
        setup = self.setup
        while self.idle and not self.num_pauses and self.is_worth_it():
            self.idle -= 1
            self.in_flight += 1
            self.after(setup.work_s(), self.finisher(self.applied))

    def is_worth_it(self) -> bool:
        """Whether one more rollout would be fresh in the step whose turn it is then."""
        if not self.setup.is_paced:
            return True
        num_ahead = self.in_flight + len(self.arrived)
        use_step = self.num_taken + num_ahead // self.setup.per_step
        return use_step - self.applied <= self.setup.bound

    def finisher(self, version: int) -> Callable[[], None]:
        def arrive() -> None:
            self.in_flight -= 1
            heapq.heappush(self.arrived, (version, next(self.num_events)))
            self.made.append(self.num_taken)
            self.train_if_fed()
            self.lease()

        def finish() -> None:
            self.idle += 1
            self.after(self.setup.trip_s, arrive)
            self.lease()

        return finish

    def train_if_fed(self) -> None:
        setup = self.setup
        while self.arrived and self.num_taken - self.arrived[0][0] > setup.bound:
            heapq.heappop(self.arrived)
            self.expired.append(self.num_taken)
        if self.is_training or len(self.arrived) < setup.per_step:
            return
        for _ in range(setup.per_step):
            heapq.heappop(self.arrived)
        self.waits_s.append(self.now_s - self.waiting_since_s)
        self.num_taken += 1
        self.is_training = True
        self.after(setup.train_s, self.trained)
        self.lease()

    def trained(self) -> None:
        self.is_training = False
        self.ends_s.append(self.now_s)
        self.waiting_since_s = self.now_s
        version = self.num_taken
        if version % self.setup.every == 0:
            self.after(self.setup.broadcast_s - self.setup.pause_s, self.pause)
            self.after(self.setup.broadcast_s, lambda: self.apply(version))
        self.train_if_fed()
        self.lease()

    def pause(self) -> None:
        self.num_pauses += 1

    def apply(self, version: int) -> None:
        self.num_pauses -= 1
        self.applied = max(self.applied, version)
        self.lease()
