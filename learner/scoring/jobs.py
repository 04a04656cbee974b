"""What the scorer's processes are asked to do, and what becomes of it; without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from echo2swarm.system.errors import ChildError
from learner.scoring.messages import (
    CompletionToScore,
    Prompt,
    Prompts,
    Reward,
    ScoreFault,
    SkippedPrompt,
)


@dataclass(slots=True, eq=False)
class DrawJob:
    """Prompts that somebody waits for; whole, or the rest of what a lost process did not make."""

    start: int
    count: int
    num_lost: int = 0
    """Processes that were lost over its first prompt."""
    made: list[Prompt] = field(default_factory=list)
    skipped: list[SkippedPrompt] = field(default_factory=list)
    error: ChildError | None = None
    done: trio.Event = field(default_factory=trio.Event)
    at_once: int = 0
    """How many to ask for next; 0 for all."""

    def next_count(self) -> int:
        """Return how many prompts to ask for."""
        return min(self.count, self.at_once or self.count)

    def took(self, prompts: Prompts) -> bool:
        """Take in what was asked for last; returns whether that was all."""
        self.made += prompts.prompts
        self.skipped += prompts.skipped
        asked = self.next_count()
        self.start, self.count = self.start + asked, self.count - asked
        self.num_lost = self.at_once = 0
        return self._finish_if_done()

    def lost(self, num_done: int, error: ChildError, *, attempts: int) -> bool:
        """Take in that a process was lost over it; returns whether nothing is left to ask for."""
        if num_done and not self.at_once:
            self.at_once = min(num_done, self.count - 1) or 1  # those that it did make, again
            return False
        self.at_once = 1
        self.num_lost += 1
        if self.num_lost >= attempts:
            self.skipped.append(SkippedPrompt(self.start, "", str(error)[:500]))
            self.start, self.count = self.start + 1, self.count - 1
            self.num_lost = 0
        return self._finish_if_done()

    def fail(self, error: ChildError) -> None:
        """End it with an error of the scorer's own."""
        self.error = error
        self.done.set()

    def _finish_if_done(self) -> bool:
        if self.count:
            return False
        self.done.set()
        return True


@dataclass(slots=True, eq=False)
class Request:
    """Completions of one caller, who waits until all have their reward."""

    completions: Sequence[CompletionToScore]
    rewards: list[Reward | None] = field(init=False)
    num_left: int = field(init=False)
    is_wanted: bool = True
    """Until whoever waited for it does not any more."""
    error: ChildError | None = None
    done: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        """Begin without rewards."""
        self.rewards = [None] * len(self.completions)
        self.num_left = len(self.completions)

    def settle(self, place: int, reward: Reward) -> None:
        """Take in one reward."""
        if self.rewards[place] is None:
            self.num_left -= 1
        self.rewards[place] = reward
        if not self.num_left:
            self.done.set()

    def fail(self, error: ChildError) -> None:
        """End it with an error of the scorer's own."""
        self.error = error
        self.done.set()


@dataclass(frozen=True, slots=True, eq=False)
class ScoreJob:
    """Some of a request's completions, scored in one call."""

    request: Request
    places: range
    is_suspect: bool = False
    """Whether a process was lost over it before; then it is one completion."""

    @property
    def completions(self) -> tuple[CompletionToScore, ...]:
        """What to score."""
        return tuple(self.request.completions[place] for place in self.places)

    def took(self, rewards: Sequence[Reward]) -> "ScoreJob | None":
        """Take in the rewards of the first of them; returns what is left to do."""
        for place, reward in zip(self.places, rewards, strict=False):
            self.request.settle(place, reward)
        left = self.places[len(rewards) :]
        return ScoreJob(self.request, left) if left else None

    def lost(self, num_done: int, error: str, fault: ScoreFault | None) -> "list[ScoreJob]":
        """Take in that a process was lost over it; returns what is left to do.

        Args:
            num_done: how far it had come; so it is known over which completion.
            error: how it was lost.
            fault: set if it is sure that it was that completion's doing; else it is tried again.
        """
        at = min(num_done, len(self.places) - 1)
        suspect = self.places[at : at + 1]
        jobs = [ScoreJob(self.request, self.places[:at])] if at else []
        if fault is None and self.is_suspect:
            fault = ScoreFault.FAILED
        if fault is None:
            jobs.append(ScoreJob(self.request, suspect, is_suspect=True))
        else:
            self.request.settle(suspect[0], Reward(None, "", error[:500], fault))
        if rest := self.places[at + 1 :]:
            jobs.append(ScoreJob(self.request, rest))
        return jobs

    def drop(self, error: str) -> None:
        """Give it up: its node has to wait."""
        for place in self.places:
            self.request.settle(place, Reward(None, "", error, ScoreFault.WAITING))
