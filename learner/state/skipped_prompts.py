"""Prompts that training goes on without: counted, and told which they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from learner.scoring.messages import MAX_TOLD, Prompt, SkippedPrompt, told

_MAX_KNOWN: Final = 10_000

log = structlog.get_logger()


@dataclass(slots=True)
class LeftOut:
    """What was left out since this process started.

    A prompt of a file comes again in every epoch: it is told once.
    """

    num_unmade: int = 0
    """Prompts that could not be made."""
    num_unusable: int = 0
    """Prompts that were empty, too long, or held out."""
    first: str = ""
    """The first that could not be made, and why."""
    last: str = ""
    """The last that was left out, and why."""
    _known: set[str] = field(default_factory=set)

    def cannot_be_made(self, prompts: Sequence[SkippedPrompt]) -> None:
        """Note prompts that the task, or the model's template, raises for."""
        self.num_unmade += len(prompts)
        if prompts:
            self.first = self.first or told(prompts[0])
            self.last = told(prompts[-1])
        new = [each for each in prompts if self._is_new(each.where or str(each.index))]
        if new:
            log.warning(
                "prompts.skipped",
                count=len(new),
                why="they can't be made",
                which=[told(each) for each in new[:MAX_TOLD]],
            )

    def cannot_be_used(self, prompts: Sequence[Prompt], why: str) -> None:
        """Note prompts that can't be leased."""
        self.num_unusable += len(prompts)
        if prompts:
            self.last = f"{_which(prompts[-1])}: {why}"
        new = [each for each in prompts if self._is_new(each.where or str(each.index))]
        if new:
            log.warning(
                "prompts.skipped",
                count=len(new),
                why=why,
                which=[_which(each) for each in new[:MAX_TOLD]],
            )

    @property
    def report(self) -> str:
        """What to tell the run's owner; empty if there is nothing."""
        if not self.num_unmade:
            return ""
        count = "1 prompt" if self.num_unmade == 1 else f"{self.num_unmade} prompts"
        return f"{count} could not be made and are left out; {self.first}"

    def _is_new(self, which: str) -> bool:
        if which in self._known or len(self._known) >= _MAX_KNOWN:
            return False
        self._known.add(which)
        return True


def _which(prompt: Prompt) -> str:
    num_tokens = len(prompt.tokens) // 4
    where = f", {prompt.where}" if prompt.where else ""
    return f"prompt {prompt.index}{where} ({num_tokens} tokens)"
