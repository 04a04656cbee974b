"""Who is to work, decided by the real selector on what the simulated learner measured."""

import random
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from echo2swarm.scheduling.capacity import LearnerLoad
from echo2swarm.scheduling.nodes.node_offer import credible_rates, mean_and_std, node_offer
from echo2swarm.scheduling.selection import (
    Effort,
    Limits,
    Need,
    NodeOffer,
    Selection,
    select,
)
from echo2swarm.scheduling.selection.hysteresis import Dwell
from echo2swarm.simulate.accounts import Accounts
from echo2swarm.simulate.broadcast import BroadcastModel
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.measures import Measures, p95
from echo2swarm.simulate.members import SimulatedMember
from echo2swarm.simulate.node import SimNode
from echo2swarm.simulate.tables import MBIT_BYTES, Scenario
from protocols.ids import PeerId

_AFTER_NEWS_S: Final = 0.2
"""What comes within this time is one piece of news."""
_MANY: Final = 500
_LIMIT_S: Final = 1e6
_HOUR_S: Final = 3600.0


class Activation:
    """Selects now and then, and when somebody comes or goes; keeps the bill."""

    def __init__(
        self,
        scenario: Scenario,
        engine: EventClock,
        *,
        members: dict[PeerId, SimulatedMember],
        accounts: Accounts,
        measures: Measures,
        broadcast: BroadcastModel,
        rng: random.Random,
        on_activated: Callable[[SimNode], None],
    ) -> None:
        self._scenario = scenario
        self._engine = engine
        self._members = members
        self._accounts = accounts
        self._measures = measures
        self._broadcast = broadcast
        self._rng = rng
        self._on_activated = on_activated
        self._is_due = False
        self._selected_at_s = -inf
        self._billed_until: dict[PeerId, float] = {}
        self.selection: Selection | None = None
        """The last one."""

    def start(self) -> None:
        """Select from now on."""
        self._engine.after(0.0, self._tick)

    def news(self) -> None:
        """Select soon: somebody has come or gone.

        With hundreds of nodes there is always news, and the next selection is soon enough.
        """
        is_soon_enough = len(self._members) > _MANY and self.selection is not None
        if not self._is_due and not is_soon_enough:
            self._is_due = True
            self._engine.after(_AFTER_NEWS_S, self._act_on_news)

    def price_changed(self, node: SimNode, usd_per_hour: float) -> None:
        """Bill a node up to now, and from now on by another price."""
        self._bill(node)
        node.usd_per_hour = usd_per_hour

    def is_gone(self, member: SimulatedMember) -> None:
        """Stop paying for a node."""
        if member.is_active:
            self._bill(member.node)
            del self._billed_until[member.peer]
            member.is_active = False
            self._accounts.num_deactivations += 1

    def close(self) -> None:
        """Bill everybody up to now."""
        for member in self._members.values():
            if member.is_active:
                self._bill(member.node)
        usd_per_s = self._scenario.learner.usd_per_hour / _HOUR_S
        self._accounts.learner_usd = self._engine.now_s * usd_per_s

    @property
    def num_active(self) -> int:
        """Nodes that are to work."""
        return len(self._billed_until)

    @property
    def needed_rollouts_per_s(self) -> float | None:
        """As the last selection saw it."""
        return self.selection.needed_rollouts_per_s if self.selection else None

    # Inside.

    def _tick(self) -> None:
        """Select, unless that was done for some news a moment ago."""
        every_s = self._scenario.selector.every_s
        since_s = self._engine.now_s - self._selected_at_s
        if since_s < every_s / 2:
            self._engine.after(every_s - since_s, self._tick)
            return
        self._select()
        self._engine.after(every_s, self._tick)

    def _act_on_news(self) -> None:
        self._is_due = False
        self._select()

    def _select(self) -> None:
        self._selected_at_s = self._engine.now_s
        now_s = self._engine.now_s
        table = self._scenario.selector
        present = [member for member in self._members.values() if member.is_present]
        priors = _priors(present)
        offers = [
            self._offer(member, prior, now_s) for member, prior in zip(present, priors, strict=True)
        ]
        self.selection = select(
            offers,
            self._need(now_s),
            Limits(
                max_nodes=table.max_nodes,
                max_usd_per_hour=table.max_usd_per_hour,
                max_node_usd_per_hour=table.max_node_usd_per_hour,
            ),
            effort=Effort(table.effort),
            # A time limit would make the result depend on how fast this machine is.
            left_s=lambda: _LIMIT_S,
        )
        had_some = self.num_active > 0
        num_changes = 0
        for key, choice in self.selection.choices.items():
            member = self._members[PeerId(key)]
            member.why = choice.why
            if choice.is_active != member.is_active:
                num_changes += 1
                self._direct(member, is_active=choice.is_active)
        self._accounts.num_switches += bool(num_changes and had_some)

    def _direct(self, member: SimulatedMember, *, is_active: bool) -> None:
        node, now_s = member.node, self._engine.now_s
        if is_active:
            self._billed_until[member.peer] = now_s
            member.is_active = True
            self._accounts.num_activations += 1
            self._on_activated(node)
        else:
            self.is_gone(member)
        member.dwell = member.dwell.switched(is_active=is_active, now_s=now_s)
        delay_s = self._scenario.learner.heartbeat_s * self._rng.random() + node.kind.rtt_s / 2
        self._engine.after(delay_s, self._tell, member, member.session)

    def _tell(self, member: SimulatedMember, session: int) -> None:
        # By now it may have been decided otherwise: a heartbeat is answered with what holds.
        member.node.directed(session, is_active=member.is_active)

    def _offer(self, member: SimulatedMember, prior_per_s: float, now_s: float) -> NodeOffer:
        node, kind = member.node, member.node.kind
        may_switch = member.dwell.may_switch(kind.startup_s, now_s)
        rate = mean_and_std(member.speed(now_s, prior_per_s=prior_per_s), member.presence, now_s)
        load_s = self._load_s(member)
        facts = (
            *(*rate, node.usd_per_hour, load_s),
            *(may_switch, member.is_active, member.is_ready),
        )
        if member.offer is not None and member.offer_facts == facts:
            return member.offer
        has_links = self._broadcast.payload_bytes > 0
        member.offer_facts = facts
        member.offer = node_offer(
            key=member.peer,
            usd_per_hour=node.usd_per_hour,
            rate=rate,
            presence=member.presence,
            dwell=Dwell(member.is_active, member.dwell.since_s),
            link_bytes_per_s=(
                (kind.up_mbit * MBIT_BYTES, kind.down_mbit * MBIT_BYTES)
                if has_links
                else (None, None)
            ),
            load_s=load_s,
            startup_s=kind.startup_s,
            is_measured=True,
            is_ready=member.is_ready,
            now_s=now_s,
        )
        return member.offer

    def _load_s(self, member: SimulatedMember) -> float:
        """Return what passes between a version's last byte and its use: what links don't explain.

        What was measured lately, to a tenth of a second, or else what such a node should take.
        """
        expected_s = self._broadcast.expected_s
        usual_s = member.broadcasts.usual_s
        if expected_s is None or usual_s is None:
            return member.node.kind.load_s
        return round(max(0.0, usual_s - expected_s), 1)

    def _need(self, now_s: float) -> Need | None:
        train_s = self._measures.typical_train_s(now_s)
        if train_s is None:
            return None
        learner = self._scenario.learner
        payload_bytes = self._broadcast.payload_bytes
        return Need(
            workload=LearnerLoad(
                rollouts_per_step=self._scenario.rollouts_made_per_step,
                train_s=train_s,
                max_staleness=learner.max_staleness,
                publish_every=learner.publish_every,
                overhead_s=learner.write_s / learner.publish_every,
            ),
            rollout_s=p95(self._measures.rollout_s, now_s),
            payload_bytes=payload_bytes,
            source_bytes_per_s=learner.upload_mbit * MBIT_BYTES if payload_bytes else None,
            broadcast_s=p95(self._measures.broadcast_s, now_s),
            headroom=learner.headroom,
            z=self._scenario.selector.sigmas,
        )

    def _bill(self, node: SimNode) -> None:
        since_s = self._billed_until.get(node.peer)
        if since_s is None:
            return
        now_s = self._engine.now_s
        count = self._accounts.of(node.peer)
        count.active_s += now_s - since_s
        count.usd += (now_s - since_s) / _HOUR_S * node.usd_per_hour
        self._billed_until[node.peer] = now_s


def _priors(members: Sequence[SimulatedMember]) -> list[float]:
    """Return what the nodes' claims count for."""
    measured = (member.measured_per_s for member in members if member.num_accepted)
    return credible_rates([member.claimed_rollouts_per_s for member in members], measured)
