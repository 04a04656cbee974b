"""Who is scored next, without I/O: each node gets its fair share of the scorer's time.

Time is what is shared, as measured: a node whose completions take long gets few of them scored,
whoever else has work. Fair queuing by virtual time: next is the one that was served least, since
it last came or since the others did. Nodes that are not trusted (new, slow to score lately, or
with time-outs not made up for yet) count as one among the others, however many they are, and
never have all processes at work at once. So strangers can delay only each other.

A node of which completions time out, or bring the scorer down, has to wait from the second one
on, twice as long each time; good completions make up for it. What the verifier is too slow for
on everybody's completions is held against nobody.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Generic, TypeVar

J = TypeVar("J")

LEARNER: Final = ""
"""Whose work comes first: the learner's own, prompts above all."""
MIN_SCORED: Final = 8
"""Completions after which a node may be trusted."""
SLOW_SHARE: Final = 0.25
"""Of the limit: who takes longer on average is not trusted."""
FREE_TIMEOUTS: Final = 1
"""Before a node has to wait."""
MADE_UP_BY: Final = 20
"""Good completions that make up for one time-out."""
FIRST_WAIT_S: Final = 10.0
LONGEST_WAIT_S: Final = 3600.0
MAX_QUEUED: Final = 256
"""Jobs of one node; more are not taken."""
MAX_ACCOUNTS: Final = 8192
_USUAL_FACTOR: Final = 3.0
"""So many times as many time-outs as others have are still the verifier's fault."""
_MIN_COMPARED: Final = 20
_WINDOW: Final = 512
"""Completions by which a node's share of time-outs and its mean are measured."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A node has to wait."""

    until_s: float
    num_timeouts: int
    """Not made up for."""

    def why(self, limit_s: float, now_s: float) -> str:
        """Return what to tell of it."""
        left_s = max(1, round(self.until_s - now_s))
        return (
            f"{self.num_timeouts} of its completions took longer than {limit_s:g} s to score: "
            f"it waits {left_s} s"
        )


@dataclass(slots=True, eq=False)
class _Account(Generic[J]):
    """What is known of one node."""

    queue: deque[J] = field(default_factory=deque)
    num_running: int = 0
    served_s: float = 0.0
    """Virtual: as long as it has work."""
    num_scored: float = 0.0
    num_timeouts: float = 0.0
    """Of them; both count less the longer ago it was."""
    scored_s: float = 0.0
    strikes: int = 0
    num_good: int = 0
    """Completions since the last time-out or the last that was made up for."""
    wait_until_s: float = 0.0
    seen: int = 0
    """When it last had work, as a number that grows."""

    @property
    def timeout_share(self) -> float:
        return self.num_timeouts / self.num_scored if self.num_scored else 0.0

    def took(self, took_s: float, *, num_good: int, num_timeouts: int) -> None:
        """Note what a job came to."""
        self.served_s += took_s
        self.scored_s += took_s
        self.num_scored += num_good + num_timeouts
        self.num_timeouts += num_timeouts
        if self.num_scored > _WINDOW:
            self.num_scored, self.num_timeouts = self.num_scored / 2, self.num_timeouts / 2
            self.scored_s /= 2
        self.num_good += num_good
        while self.strikes and self.num_good >= MADE_UP_BY:
            self.strikes -= 1
            self.num_good -= MADE_UP_BY
        self.strikes += num_timeouts
        if num_timeouts or not self.strikes:
            self.num_good = 0


class FairShares(Generic[J]):
    """Jobs that wait for the scorer.

    Args:
        limit_s: how long one completion may take.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._accounts: dict[str, _Account[J]] = {}
        self._active: dict[str, _Account[J]] = {}
        """Those with jobs that wait or run."""
        self._served_s = 0.0
        """The virtual time of whoever was served last."""
        self._untrusted_served_s = 0.0
        self._clock = 0

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return sum(len(account.queue) for account in self._active.values())

    def is_full(self, owner: str) -> bool:
        """Whether no more jobs of a node are taken."""
        account = self._accounts.get(owner)
        return owner != LEARNER and account is not None and len(account.queue) >= MAX_QUEUED

    def add(self, owner: str, job: J, *, is_first: bool = False) -> None:
        """Let a job wait, behind its owner's others or, if it was begun before, ahead of them."""
        account = self._accounts.get(owner)
        if account is None:
            account = self._open(owner)
        self._clock += 1
        account.seen = self._clock
        if not account.queue and not account.num_running:
            # Idle time is not saved up.
            account.served_s = max(account.served_s, self._served_s)
        if not any(not self._is_trusted(other) for other in self._active):
            self._untrusted_served_s = max(self._untrusted_served_s, self._served_s)
        self._active[owner] = account
        if is_first:
            account.queue.appendleft(job)
        else:
            account.queue.append(job)

    def next(self, *, num_processes: int) -> tuple[str, J] | None:
        """Return the job to do now, and whose it is; None if none may be done.

        Args:
            num_processes: how many there are, the one that would do it included.
        """
        owner = self._choose(num_processes)
        if owner is None:
            return None
        account = self._accounts[owner]
        if owner != LEARNER:
            trusted = self._is_trusted(owner)
            self._served_s = max(
                self._served_s, account.served_s if trusted else self._untrusted_served_s
            )
        account.num_running += 1
        return owner, account.queue.popleft()

    def ended(
        self, owner: str, *, took_s: float, num_good: int, num_timeouts: int, now_s: float
    ) -> list[J]:
        """Note what a job came to.

        Args:
            owner: whose it was.
            took_s: how long the scorer was busy with it.
            num_good: completions that were scored in time, whatever came of it.
            num_timeouts: those that took too long, or brought the scorer down.
            now_s: the present.

        Returns:
            The owner's other jobs if it has to wait now; they are dropped.
        """
        account = self._accounts[owner]
        account.num_running -= 1
        dropped: list[J] = []
        if owner != LEARNER:
            if not self._is_trusted(owner):
                self._untrusted_served_s += took_s
            account.took(took_s, num_good=num_good, num_timeouts=num_timeouts)
            if num_timeouts and account.strikes > FREE_TIMEOUTS and not self._is_usual(owner):
                doublings = min(account.strikes - FREE_TIMEOUTS - 1, 20)
                account.wait_until_s = now_s + min(FIRST_WAIT_S * 2**doublings, LONGEST_WAIT_S)
                dropped = list(account.queue)
                account.queue.clear()
        self._retire(owner)
        return dropped

    def cancel(self, owner: str, job: J) -> None:
        """Drop a job that nobody waits for any more, if it has not begun."""
        account = self._accounts.get(owner)
        if account is not None and job in account.queue:
            account.queue.remove(job)
            self._retire(owner)

    def wait_of(self, owner: str, now_s: float) -> Wait | None:
        """Return until when a node has to wait; None if it need not."""
        account = self._accounts.get(owner)
        if account is None or account.wait_until_s <= now_s:
            return None
        return Wait(account.wait_until_s, account.strikes)

    # Inside.

    def _retire(self, owner: str) -> None:
        account = self._accounts[owner]
        if not account.queue and not account.num_running:
            self._active.pop(owner, None)

    def _choose(self, num_processes: int) -> str | None:
        if (own := self._accounts.get(LEARNER)) is not None and own.queue:
            return LEARNER
        trusted: list[tuple[float, int, str]] = []
        others: list[tuple[int, float, int, str]] = []
        num_untrusted = 0
        for owner, account in self._active.items():
            if owner == LEARNER:
                continue
            is_trusted = self._is_trusted(owner)
            if not is_trusted:
                num_untrusted += account.num_running
            if not account.queue:
                continue
            # What runs may take its whole limit.
            served_s = account.served_s + account.num_running * self._limit_s
            if is_trusted:
                trusted.append((served_s, account.seen, owner))
            elif not account.num_running:
                others.append((account.strikes, served_s, account.seen, owner))
        if num_untrusted >= max(1, num_processes - 1):
            others = []
        best = min(trusted, default=None)
        stranger = min(others, default=None)
        if best is None or stranger is None:
            return best[-1] if best else stranger[-1] if stranger else None
        served_s = self._untrusted_served_s + num_untrusted * self._limit_s
        return best[-1] if best[0] <= served_s else stranger[-1]

    def _is_trusted(self, owner: str) -> bool:
        account = self._accounts[owner]
        if owner == LEARNER:
            return True
        if account.strikes or account.num_scored < MIN_SCORED:
            return False
        return account.scored_s <= SLOW_SHARE * self._limit_s * account.num_scored

    def _is_usual(self, owner: str) -> bool:
        """Whether others have nearly as many time-outs: then it is the verifier that is slow."""
        shares = [
            account.timeout_share
            for other, account in self._accounts.items()
            if other not in {owner, LEARNER} and account.num_scored >= _MIN_COMPARED
        ]
        own = self._accounts[owner].timeout_share
        return bool(shares) and own <= _USUAL_FACTOR * median(shares)

    def _open(self, owner: str) -> _Account[J]:
        if len(self._accounts) >= MAX_ACCOUNTS:
            idle = [
                (account.strikes, account.seen, other)
                for other, account in self._accounts.items()
                if other not in self._active and other != LEARNER
            ]
            if idle:
                del self._accounts[min(idle)[-1]]
        account = self._accounts[owner] = _Account()
        return account
