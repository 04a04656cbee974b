"""Decides who works, again and again: when somebody comes or goes, and every few seconds.

The choice is computed in a thread, at most once a second; what changed meanwhile is noticed
by the node table's ``epoch``, and an answer to a question of yesterday is dropped. Between
two choices a node that leaves is simply gone, and one that comes is let in at once where
more work is wanted anyway.
"""

import re
import time
from functools import partial
from math import inf
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.selection import Effort, Limits, Need, NodeOffer, Selection, select
from echo2swarm.system.change_event import ChangeEvent
from learner.config import SelectorConfig
from learner.membership.offers import limits_of, need_of, offers_of
from learner.state.link_table import LinkTable
from learner.state.node import UNABLE, Node
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.heartbeat import Directive, NodeState
from protocols.ids import PeerId, short

SELECT_EVERY_S: Final = 5.0
MIN_GAP_S: Final = 1.0
"""Between two choices: what happens within is answered at once."""
SOLVE_S: Final = 2.0
GIVE_UP_S: Final = 10.0
"""The solver keeps to its time, as a rule."""
MANY: Final = 200
"""From so many nodes on, a good choice is made first, and then the best is sought."""
MAX_DROPPED: Final = 2
"""After so many choices in a row that came too late, the next counts for those still there."""
SAY_AGAIN_S: Final = 60.0
"""How long a reason stays as it is if only its numbers change."""
_START_S: Final = 5.0
"""Taken for a node's start-up before any was seen."""
_UNABLE_WORDS: Final = {
    NodeState.DRAINING: "is draining",
    NodeState.PAUSED: "is paused by its owner",
}
_NUMBERS: Final = re.compile(r"[0-9.]+")

log = structlog.get_logger()


class Activator:
    """Directs the nodes."""

    def __init__(
        self,
        *,
        nodes: NodeTable,
        links: LinkTable,
        progress: LearnerProgress,
        selector: SelectorConfig,
        changes: ChangeEvent,
    ) -> None:
        self._nodes = nodes
        self._links = links
        self._progress = progress
        self._sigmas = selector.sigmas
        self._limits = limits_of(selector)
        self._changes = changes
        self._wanted = trio.Event()
        self._limiter = trio.CapacityLimiter(2)
        self._selection: Selection | None = None
        self._said_at_s: dict[PeerId, float] = {}
        self._last_told: tuple[object, ...] = ()

    @property
    def selection(self) -> Selection | None:
        """The last choice."""
        return self._selection

    @property
    def limits(self) -> Limits:
        """What the owner allows."""
        return self._limits

    def need(self, now_s: float) -> Need | None:
        """Return what keeps the learner busy."""
        return need_of(self._progress, self._nodes, self._links, now_s, sigmas=self._sigmas)

    def offers(self, now_s: float) -> list[NodeOffer]:
        """Return the nodes as the selector sees them."""
        present = [node.peer for node in self._nodes.present]
        payload_bytes = self._nodes.update_bytes
        bound_s = (
            None
            if payload_bytes is None
            else self._links.expected_broadcast_s(payload_bytes, present)
        )
        rollout = self._progress.rollout_s.estimate(now_s)
        return offers_of(
            self._nodes,
            self._links,
            now_s,
            bound_s=bound_s,
            usual_s=rollout.p50 if rollout else _START_S,
        )

    # What happens.

    def changed(self) -> None:
        """Choose anew soon: something has changed."""
        self._wanted.set()

    def admit(self, node: Node) -> None:
        """Decide on a node that has just come, if that needs no comparing."""
        last = self._selection
        is_enough = last is not None and last.needed_rollouts_per_s is not None and last.is_feasible
        if self._progress.is_finished:
            self._direct(node, Directive.FINISHED, "the run is finished")
        elif node.is_distrusted(trio.current_time()):
            self._direct(node, Directive.STANDBY, node.distrusted_why)
        elif not is_enough and node.state not in UNABLE and self._has_room_for(node):
            self._direct(node, Directive.ACTIVE, "active: all rollouts are wanted")
        self.changed()

    def finish(self) -> None:
        """Tell every node that the run is over."""
        for node in self._nodes.present:
            self._direct(node, Directive.FINISHED, "the run is finished")
        self._changes.notify()

    async def run(self) -> None:
        """Choose until cancelled."""
        num_dropped = 0
        while True:
            with trio.move_on_after(SELECT_EVERY_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            began_s = trio.current_time()
            is_late = not await self._choose(is_final=num_dropped >= MAX_DROPPED)
            num_dropped = num_dropped + 1 if is_late else 0
            if is_late:
                self.changed()
            await trio.sleep_until(began_s + MIN_GAP_S)

    async def _choose(self, *, is_final: bool) -> bool:
        """Choose and act on it; returns whether the answer came in time to be of use."""
        now_s = trio.current_time()
        offers, need = self.offers(now_s), self.need(now_s)
        if len(offers) > MANY and not await self._select(offers, need, Effort.GREEDY, is_final):
            return False
        return await self._select(offers, need, Effort.EXACT, is_final)

    async def _select(
        self, offers: list[NodeOffer], need: Need | None, effort: Effort, is_final: bool
    ) -> bool:
        epoch = self._nodes.epoch
        ends_s = time.monotonic() + SOLVE_S
        work = partial(
            select,
            offers,
            need,
            self._limits,
            effort=effort,
            left_s=lambda: ends_s - time.monotonic(),
        )
        selection = None
        # It is pure and ends by itself: nobody needs to wait for it, least of all at the end.
        with trio.move_on_after(GIVE_UP_S):
            selection = await trio.to_thread.run_sync(
                work, limiter=self._limiter, abandon_on_cancel=True
            )
        if selection is None:
            log.warning("selection.late", after_s=GIVE_UP_S, next="making do with a good one")
            selection = select(offers, need, self._limits, effort=Effort.GREEDY)
        if self._nodes.epoch != epoch and not is_final:
            log.debug("selection.dropped", why="somebody came or went meanwhile")
            return False
        self._apply(selection)
        return True

    def _apply(self, selection: Selection) -> None:
        self._selection = selection
        for node in self._nodes.present:
            choice = selection.choices.get(node.peer)
            if self._progress.is_finished:
                self._direct(node, Directive.FINISHED, "the run is finished")
            elif node.state in UNABLE:
                self._direct(node, Directive.STANDBY, f"standby: it {_UNABLE_WORDS[node.state]}")
            elif node.is_distrusted(trio.current_time()):
                self._direct(node, Directive.STANDBY, node.distrusted_why)
            elif choice is not None:
                directive = Directive.ACTIVE if choice.is_active else Directive.STANDBY
                self._direct(node, directive, choice.why)
        self._tell(selection)
        self._changes.notify()

    def _direct(self, node: Node, directive: Directive, why: str) -> None:
        now_s = trio.current_time()
        is_same = directive is node.directive and _is_alike(why, node.why)
        if is_same and now_s < self._said_at_s.get(node.peer, -inf) + SAY_AGAIN_S:
            return  # Its contributor need not read every new number.
        self._said_at_s[node.peer] = now_s
        if node.direct(directive, why, now_s):
            log.info(
                "node.directed",
                peer=short(node.peer),
                name=node.advert.name,
                directive=directive.value,
                why=why,
            )

    def _tell(self, selection: Selection) -> None:
        """Log a choice that differs from the last one."""
        told = (selection.chosen, selection.is_feasible, selection.needed_rollouts_per_s is None)
        if told == self._last_told:
            return
        self._last_told = told
        log.info(
            "selection.made",
            num_nodes=selection.num_nodes,
            usd_per_hour=round(selection.usd_per_hour, 4),
            supplied_rollouts_per_s=round(selection.supplied_rollouts_per_s, 3),
            **_need(selection),
            broadcast_s=round(selection.broadcast_s, 3),
            method=selection.method,
        )

    def _has_room_for(self, node: Node) -> bool:
        """Whether the limits let one more work."""
        active = [
            other
            for other in self._nodes.present
            if other.directive is Directive.ACTIVE and other is not node
        ]
        limits, price = self._limits, node.advert.usd_per_hour
        spent = sum(other.advert.usd_per_hour for other in active)
        return (
            (limits.max_nodes is None or len(active) < limits.max_nodes)
            and (limits.max_usd_per_hour is None or spent + price <= limits.max_usd_per_hour)
            and (limits.max_node_usd_per_hour is None or price <= limits.max_node_usd_per_hour)
        )

    def forget(self, peer: PeerId) -> None:
        """Forget a node for good."""
        self._said_at_s.pop(peer, None)


def _need(selection: Selection) -> dict[str, object]:
    """Return what is known of how much is needed, and whether it is supplied."""
    needed = selection.needed_rollouts_per_s
    if needed is None:
        return {"needed_rollouts_per_s": "not measured yet"}
    if needed == inf:
        why = "the learner waits at any supply: rollouts or weights take too long"
        return {"needed_rollouts_per_s": why}
    return {"needed_rollouts_per_s": round(needed, 3), "is_enough": selection.is_feasible}


def _is_alike(one: str, other: str) -> bool:
    """Whether two reasons are the same but for their numbers."""
    return _NUMBERS.sub("", one) == _NUMBERS.sub("", other)
