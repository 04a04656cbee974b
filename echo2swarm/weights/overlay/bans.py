"""Who sent wrong bytes, as others say: who is kept apart, and who is shut out; pure.

A report keeps its two peers apart. Three reporters shut a peer out, for an hour; each
counts once, however often it reports. Whoever reports everybody is soon alone.
"""

from typing import Final

from protocols.ids import PeerId

BAN_S: Final = 3600.0
"""How long a report is remembered, and how long somebody is shut out."""
MIN_REPORTERS: Final = 3
MAX_PAIRS: Final = 50_000
"""Older reports than the last so many are forgotten."""


class BanBook:
    """Reports, and what follows from them."""

    def __init__(self) -> None:
        self._reports: dict[tuple[PeerId, PeerId], float] = {}
        """When (reporter, culprit) was last reported, oldest first."""
        self._banned_until_s: dict[PeerId, float] = {}

    def reported(self, reporter: PeerId, culprit: PeerId, now_s: float) -> bool:
        """Note a report; returns whether the culprit is shut out because of it."""
        self._forget_reports(now_s - BAN_S)
        self._reports.pop((reporter, culprit), None)
        self._reports[reporter, culprit] = now_s
        if len(self._reports) > MAX_PAIRS:
            del self._reports[next(iter(self._reports))]
        if self.is_banned(culprit):
            return False
        num_reporters = sum(accused == culprit for _, accused in self._reports)
        if num_reporters < MIN_REPORTERS:
            return False
        self._banned_until_s[culprit] = now_s + BAN_S
        return True

    def forgive(self, now_s: float) -> list[PeerId]:
        """End what is over; returns who is not shut out any more."""
        over = [peer for peer, until_s in self._banned_until_s.items() if until_s <= now_s]
        for peer in over:
            del self._banned_until_s[peer]
            for report in [r for r in self._reports if r[1] == peer]:
                del self._reports[report]
        self._forget_reports(now_s - BAN_S)
        return over

    def is_banned(self, peer: PeerId) -> bool:
        """Whether ``peer`` is shut out."""
        return peer in self._banned_until_s

    def banned_until_s(self, peer: PeerId) -> float | None:
        """Return until when ``peer`` is shut out; None if it is not."""
        return self._banned_until_s.get(peer)

    def are_apart(self, one: PeerId, other: PeerId) -> bool:
        """Whether one of the two has reported the other."""
        return (one, other) in self._reports or (other, one) in self._reports

    def _forget_reports(self, before_s: float) -> None:
        old = []
        for report, at_s in self._reports.items():
            if at_s >= before_s:
                break
            old.append(report)
        for report in old:
            del self._reports[report]
