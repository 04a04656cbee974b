"""What a node does on virtual time: it asks, samples, submits, and applies what reaches it.

What to do next is decided by the live node's :class:`Workload`. As there, one engine batch is
sampled at a time, and submissions go one after the other. One event stands for a batch, not for
its tokens.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from echo2swarm.scheduling.workload import (
    MAX_LEASES,
    MAX_UNSENT,
    Apply,
    Ending,
    GiveBack,
    LeasePart,
    SampleParts,
    Workload,
)
from echo2swarm.simulate.chance import Answers, lognormal_factor, sigma_of
from echo2swarm.simulate.clock import EventClock
from echo2swarm.simulate.tables import NodesTable
from protocols.ids import PeerId, PolicyVersion
from protocols.leases import Lease

_SOON_S: Final = 5.0
"""Within which a node tries again when the learner was away."""

Call = Callable[..., None]


class LearnerSide(Protocol):
    """What a node tells the learner. All calls come when the message arrives."""

    @property
    def step(self) -> int:
        """Updates done, as nodes hear of it with every answer."""
        ...

    @property
    def back_at_s(self) -> float:
        """When the learner can be reached again; past if it can be reached."""
        ...

    def joined(self, node: "SimNode") -> None:
        """A node is here."""
        ...

    def left(self, node: "SimNode") -> None:
        """A node says goodbye."""
        ...

    def applied(self, node: "SimNode", version: int) -> None:
        """A node samples with ``version`` from now on."""
        ...

    def asked(self, node: "SimNode", version: int, ask_round: int) -> None:
        """A node asks for work; the answer comes by :meth:`SimNode.granted`, if there is any."""
        ...

    def given_back(self, node: "SimNode", lease_id: str) -> None:
        """A node will do no more of a lease."""
        ...

    def submitted(self, node: "SimNode", work: "SimulatedSubmission") -> None:
        """A node hands results in, and they have been scored."""
        ...


@dataclass(frozen=True, slots=True)
class SimulatedSubmission:
    """Finished completions of one lease."""

    part: LeasePart
    version: int
    num_tokens: tuple[float, ...]
    """Of each completion, in order."""


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A version on its way."""

    version: int
    began_s: float
    ends_s: float


class SimNode:
    """One node.

    Args:
        peer: its name.
        kind: what it is like.
        tokens_per_s: its speed.
        usd_per_hour: its price at first.
        judge_s: what the learner takes for a verdict.
        answers: how long completions are.
        engine: the clock.
        learner: whom it works for.
        rng: its luck.
    """

    def __init__(
        self,
        peer: PeerId,
        kind: NodesTable,
        *,
        tokens_per_s: float,
        usd_per_hour: float,
        judge_s: float,
        answers: Answers,
        engine: EventClock,
        learner: LearnerSide,
        rng: random.Random,
    ) -> None:
        self.peer = peer
        self.kind = kind
        self.tokens_per_s = tokens_per_s
        self.speed_factor = 1.0
        self.usd_per_hour = usd_per_hour
        self.session = 0
        """Counts its lives; what belongs to an earlier one happens no more."""
        self.ask_round = 0
        """Counts how often it stopped taking work: earlier questions are void."""
        self.is_up = False
        self.is_leaving = False
        self.held_version: PolicyVersion | None = None
        self._applied: PolicyVersion | None = None
        self._is_engine_up = False
        self._is_busy = False
        self._work = self._no_work()
        self._fetching: _Fetch | None = None
        self._fetch_next: tuple[int, float] | None = None
        self._next_submit_s = 0.0
        self._submit_s = max(1e-6, kind.rtt_s + judge_s)
        self._judge_s = judge_s
        self._batch_sigma = sigma_of(kind.batch_cv)
        self._answers = answers
        self._engine = engine
        self._learner = learner
        self._rng = rng

    # Coming and going.

    def boot(self) -> None:
        """Join, with nothing in hand."""
        self.session += 1
        self.ask_round += 1
        self.is_up, self.is_leaving = True, False
        self.held_version = self._applied = self._fetching = self._fetch_next = None
        self._is_engine_up = self._is_busy = False
        self._work, self._next_submit_s = self._no_work(), 0.0
        self._tell(self._learner.joined)
        self._later(self.kind.startup_s, self._engine_started)

    def vanish(self) -> None:
        """Be gone, with whatever is in hand; nobody is told."""
        self.session += 1
        self.is_up = False

    def leave(self) -> None:
        """Finish what is begun, give back the rest, and go."""
        if not self.is_up or self.is_leaving:
            return
        self.is_leaving = True
        self._stop_taking()
        self._ended(self._work.hand_back("it leaves", only_not_begun=True))
        self._leave_if_idle()

    def directed(self, session: int, *, is_active: bool) -> None:
        """Hear whether to work."""
        if session != self.session or self.is_leaving or is_active == self._work.is_taking:
            return
        if is_active:
            self._work.take(is_wanted=True)
            self._ask()
        else:
            self._stop_taking()

    # Versions.

    @property
    def is_fetching(self) -> bool:
        """Whether a version is on its way to it."""
        return self._fetching is not None

    def offered(
        self, session: int, version: int, takes_s: float, *, fills_line: bool = True
    ) -> None:
        """Fetch a version.

        Args:
            session: of the node that it is offered to.
            version: which.
            takes_s: for how long.
            fills_line: whether one transfer goes on at a time: then one that is not half done
                is given up for this one, and another is waited for.
        """
        if session != self.session or not self.is_up:
            return
        if self.held_version is not None and self.held_version >= version:
            return
        if not fills_line:
            self._later(takes_s, self._holds, version)
            return
        fetch, now_s = self._fetching, self._engine.now_s
        if fetch is not None and fetch.ends_s - now_s <= (fetch.ends_s - fetch.began_s) / 2:
            self._fetch_next = (version, takes_s)
        else:
            self._fetch(version, takes_s)

    def _fetch(self, version: int, takes_s: float) -> None:
        now_s = self._engine.now_s
        self._fetching = _Fetch(version, now_s, now_s + takes_s)
        self._fetch_next = None
        self._later(takes_s, self._fetched, self._fetching)

    def _fetched(self, fetch: _Fetch) -> None:
        if fetch is not self._fetching:
            return  # it was given up for a newer one
        self._fetching = None
        if self._fetch_next is not None:
            self._fetch(*self._fetch_next)
        self._holds(fetch.version)

    def _holds(self, version: int) -> None:
        if self.held_version is None or version > self.held_version:
            self.held_version = PolicyVersion(version)
            self._pump()

    def _engine_started(self) -> None:
        self._is_engine_up = True
        self._pump()

    def _loaded(self, version: PolicyVersion) -> None:
        self._is_busy = False
        self._applied = version
        self._work.applied(version)
        self._tell(self._learner.applied, version)
        self._ask()
        self._pump()

    # Work.

    def granted(self, session: int, ask_round: int, version: int, lease: Lease) -> None:
        """Take in the answer to a question that was asked with ``version``."""
        if session != self.session:
            return
        if ask_round == self.ask_round:
            self._work.answered(PolicyVersion(version))
        self._ended(self._work.add(lease))
        self._ask()
        self._pump()

    def judged(self, session: int, lease_id: str, num_rollouts: int) -> None:
        """Take in the verdicts on a submission."""
        if session == self.session:
            self._ended(self._work.submitted(lease_id, num_rollouts))

    def _no_work(self) -> Workload:
        return Workload(max_leases=MAX_LEASES, max_batch=self.kind.concurrency)

    def _stop_taking(self) -> None:
        self._work.take(is_wanted=False)
        self.ask_round += 1
        for version in self._work.asking:
            self._work.answered(version)

    def _ask(self) -> None:
        while self._applied is not None and self._work.may_ask(self._applied):
            self._work.asked(self._applied)
            self._tell(self._learner.asked, self._applied, self.ask_round)

    def _ended(self, endings: Sequence[Ending]) -> None:
        """Say which leases are given back; each that ended makes room for another one."""
        for ending in endings:
            if isinstance(ending, GiveBack):
                self._tell(self._learner.given_back, ending.lease_id)
        if endings:
            self._ask()
            self._leave_if_idle()

    def _pump(self) -> None:
        """Give the engine something to do, if it is free."""
        if self._is_busy or not self._is_engine_up or not self.is_up:
            return
        num_unsent = (self._next_submit_s - self._engine.now_s) / self._submit_s
        too_many = num_unsent - (MAX_UNSENT + 1)  # one of them is under way
        if too_many > 0:
            self._occupy(too_many * self._submit_s, self._free)
            return
        self._forget_late()
        held = () if self.held_version is None else (self.held_version,)
        match self._work.next_job(self._applied, held):
            case Apply(version):
                self._occupy(self.kind.load_s, self._loaded, version)
            case SampleParts(parts):
                works = [
                    SimulatedSubmission(part, self._applied or 0, self._answers.of_part(part))
                    for part in parts
                ]
                self._occupy(self._seconds_for(works), self._sampled, works)
            case None:
                pass

    def _occupy(self, seconds: float, then: Call, *args: object) -> None:
        self._is_busy = True
        self._later(seconds, then, *args)

    def _free(self) -> None:
        self._is_busy = False
        self._pump()

    def _seconds_for(self, works: Sequence[SimulatedSubmission]) -> float:
        """Return how long the engine takes for a batch."""
        tokens_per_s = self.tokens_per_s * self.speed_factor
        if self._batch_sigma:
            tokens_per_s /= lognormal_factor(self._batch_sigma, self._rng.gauss(0, 1))
        if self.kind.batching == "total":
            return sum(sum(work.num_tokens) for work in works) / tokens_per_s
        longest = max(max(work.num_tokens) for work in works)
        num_rounds = -(-sum(len(work.num_tokens) for work in works) // self.kind.concurrency)
        return longest * num_rounds * self.kind.concurrency / tokens_per_s

    def _sampled(self, works: Sequence[SimulatedSubmission]) -> None:
        self._is_busy = False
        self._forget_late()
        for work in works:
            if self._work.sampled(work.part):
                self._submit(work)
        self._pump()

    def _submit(self, work: SimulatedSubmission) -> None:
        start_s = max(self._engine.now_s, self._next_submit_s)
        self._next_submit_s = start_s + self._submit_s
        arrives_s = start_s + self.kind.rtt_s / 2 + self._judge_s
        self._engine.at(arrives_s, self._reach_learner, self.session, self._learner.submitted, work)

    def _forget_late(self) -> None:
        """Drop the leases that the learner has given up on."""
        self._ended(self._work.step_heard(self._learner.step))

    def _leave_if_idle(self) -> None:
        if self.is_leaving and not self._work.num_leases and self.is_up:
            self._tell(self._learner.left)
            self.vanish()

    # Time.

    def _later(self, delay_s: float, call: Call, *args: object) -> None:
        """Do something in a while, unless it is another life by then."""
        self._engine.after(delay_s, self._if_alive, self.session, call, args)

    def _if_alive(self, session: int, call: Call, args: tuple[object, ...]) -> None:
        if session == self.session:
            call(*args)

    def _tell(self, call: Call, *args: object) -> None:
        """Let a message reach the learner after half a round trip."""
        self._engine.after(self.kind.rtt_s / 2, self._reach_learner, self.session, call, *args)

    def _reach_learner(self, session: int, call: Call, *args: object) -> None:
        back_at_s = self._learner.back_at_s
        if back_at_s > self._engine.now_s:
            again_s = back_at_s + _SOON_S * self._rng.random()
            self._engine.at(again_s, self._reach_learner, session, call, *args)
        elif session == self.session or call == self._learner.left:
            call(self, *args)
