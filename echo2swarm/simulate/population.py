"""Nodes that come and go: by the scenario's times, by chance, and by its events."""

import random
from collections.abc import Callable, Sequence
from math import inf

from echo2swarm.simulate.chance import Answers, lognormal_factor, sigma_of
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.node import LearnerSide, SimNode
from echo2swarm.simulate.tables import EventTable, NodesTable, Scenario
from protocols.ids import PeerId


class Population:
    """All nodes there ever are.

    Args:
        scenario: says which.
        engine: the clock.
        learner: what they talk to.
        answers: how long they take.
        rng: their luck.
        on_new: told of each node before it joins for the first time.
        on_price: told of a new price.
        on_vanished: told of a node that is gone without a word.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: EventClock,
        learner: LearnerSide,
        *,
        answers: Answers,
        rng: random.Random,
        on_new: Callable[[SimNode], None],
        on_price: Callable[[SimNode, float], None],
        on_vanished: Callable[[SimNode], None],
    ) -> None:
        self._scenario = scenario
        self._engine = engine
        self._learner = learner
        self._answers = answers
        self._rng = rng
        self._on_new = on_new
        self._on_price = on_price
        self._on_vanished = on_vanished
        self.nodes: list[SimNode] = []
        self._num_of_kind: dict[str, int] = {}
        self.num_to_come = 0
        """Nodes that are away and will join, or join again, at a time that is set."""

    def start(self) -> None:
        """Let nodes join, and events happen."""
        for kind in self._scenario.nodes:
            self._add(kind, kind.count)
        for event in self._scenario.events:
            if event.kind == "join":
                self.num_to_come += event.count or 0
            if event.kind != "learner_outage":
                self._engine.at(event.at_s, self._happen, event)

    @property
    def num_up(self) -> int:
        """Nodes that are there."""
        return sum(node.is_up for node in self.nodes)

    @property
    def is_extinct(self) -> bool:
        """Whether no node is there, and none will come."""
        return self.num_to_come == 0 and not any(node.is_up for node in self.nodes)

    def _add(self, kind: NodesTable, count: int) -> None:
        speed_sigma, price_sigma = sigma_of(kind.speed_cv), sigma_of(kind.price_cv)
        mean_tokens_per_s = self._scenario.rollouts_per_s(kind) * self._scenario.answers.mean_tokens
        for i in range(count):
            number = self._num_of_kind.get(kind.name, 0)
            self._num_of_kind[kind.name] = number + 1
            node = SimNode(
                PeerId(f"{kind.name}-{number:05d}"),
                kind,
                tokens_per_s=mean_tokens_per_s
                * lognormal_factor(speed_sigma, self._rng.gauss(0, 1)),
                usd_per_hour=kind.usd_per_hour
                * lognormal_factor(price_sigma, self._rng.gauss(0, 1)),
                judge_s=self._scenario.learner.judge_s,
                answers=self._answers,
                engine=self._engine,
                learner=self._learner,
                rng=self._rng,
            )
            self.nodes.append(node)
            self._on_new(node)
            self.num_to_come += 1
            self._engine.after(
                kind.join_over_s * (i + self._rng.random()) / count, self._join, node
            )
            if kind.price_every_s is not None and kind.price_cv:
                self._engine.after(kind.price_every_s * self._rng.random(), self._reprice, node)

    def _join(self, node: SimNode) -> None:
        self.num_to_come -= 1
        if node.is_up:
            return
        node.boot()
        if node.kind.mean_stay_s is not None:
            stay_s = self._rng.expovariate(1 / node.kind.mean_stay_s)
            away_s = inf
            if node.kind.mean_away_s is not None:
                away_s = self._rng.expovariate(1 / node.kind.mean_away_s)
            self._engine.after(stay_s, self._end_stay, node, node.session, away_s)

    def _end_stay(self, node: SimNode, session: int, away_s: float) -> None:
        if node.session == session and node.is_up:
            self._vanish(node, away_s)

    def _vanish(self, node: SimNode, away_s: float) -> None:
        node.vanish()
        if away_s < inf:
            self.num_to_come += 1
            self._engine.after(away_s, self._join, node)
        self._on_vanished(node)

    def _reprice(self, node: SimNode) -> None:
        kind = node.kind
        usd = kind.usd_per_hour * lognormal_factor(sigma_of(kind.price_cv), self._rng.gauss(0, 1))
        self._on_price(node, usd)
        self._engine.after(kind.price_every_s or inf, self._reprice, node)

    def _happen(self, event: EventTable) -> None:
        if event.kind == "join":
            kind = next(kind for kind in self._scenario.nodes if kind.name == event.nodes)
            self.num_to_come -= event.count or 0
            self._add(kind, event.count or 0)
            return
        for node in self._drawn(event):
            if event.kind == "price" and event.usd_per_hour is not None:
                self._on_price(node, event.usd_per_hour)
            elif event.kind == "speed" and event.factor is not None:
                node.speed_factor = event.factor
            elif event.kind == "outage" and node.is_up:
                self._vanish(node, event.for_s or inf)
            elif event.kind == "leave":
                node.leave()

    def _drawn(self, event: EventTable) -> Sequence[SimNode]:
        nodes = [node for node in self.nodes if event.nodes in (None, node.kind.name)]
        return self._rng.sample(nodes, round(event.share * len(nodes)))
