"""Says who waits for what when a run stands still.

The core is pure: facts in, a sentence or nothing out. The first report comes when nothing has
moved for ``run.stall_s``; if it stays so, the next ones come at twice the distance each time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.system.rates import LearnerPhase
from echo2swarm.text.format import trouble_text
from learner.state.node_table import NodeTable
from learner.state.progress import LearnerProgress
from protocols.heartbeat import Directive
from protocols.ids import PeerId

LOOK_S: Final = 1.0
MAX_NAMED: Final = 5
MAX_TROUBLES: Final = 3
"""Different ones that are told of."""
_MAX_FACTOR: Final = 64

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node that is there."""

    name: str
    is_wanted: bool
    """Whether it was told to work."""
    why: str
    """What it was told of that."""
    applied_version: int | None
    num_in_flight: int
    """Rollouts that it has leases for."""
    trouble: str = ""
    """What it says keeps it from working."""
    scorer_wait: str = ""
    """Why nothing of it is scored for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallFacts:
    """What a stalled run is told from."""

    phase: LearnerPhase
    step: int
    newest_version: int | None
    """Published."""
    num_accepted: int
    """Rollouts, ever."""
    num_evaluated: int = 0
    """Samples of evaluations, ever."""
    num_ready: int
    """Groups that are complete."""
    num_groups_wanted: int
    """Per update."""
    num_open: int
    """Groups that lack results."""
    nodes: tuple[NodeFacts, ...] = ()
    refusals: tuple[tuple[str, int], ...] = ()
    """Rollouts refused so far, by reason."""

    @property
    def progress(self) -> tuple[object, ...]:
        """What changes when anything moves."""
        return (
            self.phase,
            self.step,
            self.newest_version,
            self.num_accepted,
            self.num_evaluated,
        )


@dataclass(slots=True)
class Watchdog:
    """Notices that nothing moves.

    Args:
        stall_s: how long before it says so.
    """

    stall_s: float
    _last: StallFacts | None = None
    _moved_at_s: float = 0.0
    _factor: int = 1
    _refusals: Counter[str] = field(default_factory=Counter)
    """As they were when something moved last."""
    report: str = ""
    """What stands still now; empty while something moves."""

    def look(self, facts: StallFacts, now_s: float) -> str | None:
        """Return a report if one is due."""
        if self._last is None or facts.progress != self._last.progress:
            self._moved_at_s, self._factor, self.report = now_s, 1, ""
            self._refusals = Counter(dict(facts.refusals))
        self._last = facts
        stalled_s = now_s - self._moved_at_s
        if facts.phase is LearnerPhase.FINISHED or stalled_s < self.stall_s * self._factor:
            return None
        self._factor = min(2 * self._factor, _MAX_FACTOR)
        self.report = explain_stall(facts, Counter(dict(facts.refusals)) - self._refusals)
        return self.report


def explain_stall(facts: StallFacts, refused_since: Counter[str]) -> str:
    """Return in a sentence who waits for what."""
    match facts.phase:
        case LearnerPhase.TRAINING:
            return (
                f"the trainer is at update {facts.step + 1}: see logs/trainer.log, and whether "
                "its device works"
            )
        case LearnerPhase.PUBLISHING:
            return (
                "the learner waits until the weights of the update before are written and "
                "published: see whether the disk is slow or full"
            )
        case LearnerPhase.CHECKPOINTING:
            return (
                "the learner waits until a checkpoint is written: see whether the disk is slow "
                "or full"
            )
        case LearnerPhase.EVALUATING:
            return (
                "training is over, and the last evaluation waits for nodes; after eval.timeout_s "
                "it ends with what it has"
            )
        case LearnerPhase.STARTING:
            return (
                "the learner is starting: loading the model, making the updates since the last "
                "checkpoint again, or waiting for room for the first version: see whether the "
                "disk is full"
            )
        case _:
            return _explain_waiting(facts, refused_since)


def _explain_waiting(facts: StallFacts, refused_since: Counter[str]) -> str:
    said = troubles_text([node.trouble for node in facts.nodes if node.trouble])
    return _explain_supply(facts, refused_since) + (f"; {said}" if said else "")


def troubles_text(troubles: Sequence[str]) -> str:
    """Return what so many nodes say of themselves, the most frequent first."""
    if not troubles:
        return ""
    who = "one node says" if len(troubles) == 1 else f"{len(troubles)} nodes say"
    counts = Counter(troubles).most_common(MAX_TROUBLES)
    texts = [f"{text} ({count} of them)" if count > 1 else text for text, count in counts]
    num_more = len(set(troubles)) - len(counts)
    return f"{who}: {'; '.join(texts)}" + (f"; and {num_more} more" if num_more else "")


def _explain_supply(facts: StallFacts, refused_since: Counter[str]) -> str:
    wanted = (
        f"update {facts.step + 1} waits for rollouts: {facts.num_ready} of "
        f"{facts.num_groups_wanted} groups are complete, {facts.num_open} open"
    )
    active = [node for node in facts.nodes if node.is_wanted]
    if not facts.nodes:
        return f"{wanted}; no node is connected: give out the ticket, see that nodes can reach us"
    waiting = [node for node in active if node.scorer_wait]
    scored = [node for node in active if not node.scorer_wait]
    said = f"; these wait for the scorer: {_waits(waiting)}" if waiting else ""
    if waiting and not scored:
        return wanted + said
    if not active:
        whys = "; ".join(dict.fromkeys(node.why for node in facts.nodes if node.why))
        return f"{wanted}; {_count(len(facts.nodes))} connected, none is to work ({whys})"
    return _explain_nodes(facts, scored, wanted, refused_since) + said


def _explain_nodes(
    facts: StallFacts, active: list[NodeFacts], wanted: str, refused_since: Counter[str]
) -> str:
    if refused_since:
        reasons = ", ".join(f"{num} {reason}" for reason, num in refused_since.most_common(3))
        return f"{wanted}; since then rollouts came and all were refused ({reasons})"
    if working := [node for node in active if node.num_in_flight]:
        return f"{wanted}; these have leases and hand nothing in: {_named(working)}"
    newest = facts.newest_version or 0
    if behind := [n for n in active if n.applied_version is None or n.applied_version < newest]:
        return f"{wanted}; these have not got version {newest} yet: {_named(behind)}"
    return f"{wanted}; these could work and have no lease: {_named(active)}"


def _named(nodes: list[NodeFacts]) -> str:
    names = [
        f"{n.name} ({n.num_in_flight} rollouts, at version "
        f"{'none' if n.applied_version is None else n.applied_version})"
        for n in nodes[:MAX_NAMED]
    ]
    more = len(nodes) - MAX_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _waits(nodes: list[NodeFacts]) -> str:
    names = [f"{node.name} ({node.scorer_wait})" for node in nodes[:MAX_NAMED]]
    more = len(nodes) - MAX_NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _count(num: int) -> str:
    return "one node is" if num == 1 else f"{num} nodes are"


def stall_facts(
    dispatcher: Dispatcher,
    nodes: NodeTable,
    progress: LearnerProgress,
    wait_of: Callable[[PeerId], str | None],
) -> StallFacts:
    """Collect the facts.

    Args:
        dispatcher: of the run.
        nodes: who takes part.
        progress: of the run.
        wait_of: returns why a node has to wait for the scorer; None if it has not.
    """
    refusals: Counter[str] = Counter()
    for node in nodes:
        refusals.update({reason.value: count for reason, count in node.refusals.items()})
    return StallFacts(
        phase=progress.timeline.phase,
        step=progress.step,
        newest_version=dispatcher.newest_version,
        num_accepted=sum(node.num_accepted for node in nodes),
        num_evaluated=progress.num_evaluated,
        num_ready=len(dispatcher.ready),
        num_groups_wanted=progress.rollouts.prompts_per_step,
        num_open=len(dispatcher.open_groups),
        nodes=tuple(
            NodeFacts(
                name=node.advert.name,
                is_wanted=node.directive is Directive.ACTIVE,
                why=node.full_why,
                applied_version=node.applied_version,
                num_in_flight=dispatcher.leases.num_unsettled_of(node.peer),
                trouble=trouble_text(node.trouble) if node.trouble else "",
                scorer_wait=wait_of(node.peer) or "",
            )
            for node in nodes.present
        ),
        refusals=tuple(sorted(refusals.items())),
    )


async def watch(watchdog: Watchdog, facts: Callable[[], StallFacts]) -> None:
    """Look each second, and log what stands still."""
    while True:
        report = watchdog.look(facts(), trio.current_time())
        if report is not None:
            log.warning("run.stalled", why=report)
        await trio.sleep(LOOK_S)
