"""A line on standard error that says how far something has come, at what rate, until when."""

import sys
from collections.abc import Callable

import click

from echo2swarm.text.format import format_seconds

_EVERY_S = 0.5
_EVERY_SHARE = 0.1


class ProgressLine:
    """On a terminal a line that is written over; elsewhere a line for every tenth.

    Args:
        unit: what is counted.
        total: how many there will be.
        now_s: the clock.
    """

    def __init__(self, unit: str, *, total: int, now_s: Callable[[], float]) -> None:
        self._unit = unit
        self._total = total
        self._now_s = now_s
        self._started_s = now_s()
        self._num_done = 0
        self._told_share = 0.0
        self._told_s = self._started_s
        self._is_terminal = sys.stderr.isatty()
        self._is_open = False

    def say(self, text: str) -> None:
        """Write a line of its own."""
        self.end()
        click.echo(text, err=True)

    def add(self, count: int) -> None:
        """Note that so many more are done."""
        self._num_done += count
        share = self._num_done / self._total
        is_due = (
            self._now_s() - self._told_s >= _EVERY_S
            if self._is_terminal
            else share - self._told_share >= _EVERY_SHARE
        )
        if is_due or self._num_done == self._total:
            self._told_share, self._told_s = share, self._now_s()
            click.echo(
                f"\r{self.text()}\x1b[K" if self._is_terminal else self.text(),
                err=True,
                nl=not self._is_terminal,
            )
            self._is_open = self._is_terminal

    def text(self) -> str:
        """Return what the line says."""
        took_s = max(1e-9, self._now_s() - self._started_s)
        per_s = self._num_done / took_s
        left = self._total - self._num_done
        eta = format_seconds(left / per_s) if per_s else "?"
        return f"{self._num_done:,} of {self._total:,} {self._unit}, {per_s:.1f}/s, {eta} left"

    def end(self) -> None:
        """Leave the line as it is."""
        if self._is_open:
            click.echo(err=True)
            self._is_open = False
