"""What this node tells of its links, and when: so that the learner can measure them.

The learner takes the time of a transfer from our heartbeats. So one is sent when something
begins to move and when it has stopped, not only every few seconds.
"""

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import trio

from echo2swarm.broadcast.upload import UploadBudget
from echo2swarm.weights.traffic import Traffic
from protocols.activation import MAX_LINKS, Dial, LinkReport
from protocols.ids import PeerId

TICK_S: Final = 0.25
UPLOAD_SHARE: Final = 0.8
"""Of the measured upload, unless the contributor says how much."""
STOPPED_TICKS: Final = 2
"""Nothing for so many ticks is an end; a gap shorter than that is none."""


class Flow:
    """When bytes moved, seen by looking at counters now and then; without a clock."""

    def __init__(self) -> None:
        self.receiving_s = 0.0
        """Time in which bytes came in, so far."""
        self.moved_at_s: float | None = None
        """When something moved last, in either direction."""
        self._counters = (0, 0)
        self._looked_at_s: float | None = None
        self._num_idle = STOPPED_TICKS

    def look(self, now_s: float, *, sent_bytes: int, received_bytes: int) -> bool:
        """Take the counters as they are now; returns whether a transfer began or ended."""
        before, self._counters = self._counters, (sent_bytes, received_bytes)
        since_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        if received_bytes > before[1]:
            self.receiving_s += since_s
        if self._counters != before:
            self.moved_at_s = now_s
            has_begun, self._num_idle = self._num_idle >= STOPPED_TICKS, 0
            return has_begun
        self._num_idle += 1
        return self._num_idle == STOPPED_TICKS

    def idle_s(self, now_s: float) -> float:
        """Return for how long nothing has moved; since the beginning, if nothing ever did."""
        return now_s if self.moved_at_s is None else now_s - self.moved_at_s


class Links:
    """Counts, and reports.

    Args:
        traffic: what was moved.
        dials: what came of attempts to dial our neighbours.
        on_change: called when a transfer begins or ends.
    """

    def __init__(
        self,
        traffic: Traffic,
        *,
        dials: Callable[[], Mapping[PeerId, Dial]],
        on_change: Callable[[], None],
    ) -> None:
        self.flow = Flow()
        self._traffic = traffic
        self._dials = dials
        self._on_change = on_change
        self._told: dict[PeerId, tuple[int, int]] = {}

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        while True:
            if self.flow.look(
                trio.current_time(),
                sent_bytes=self._traffic.sent_bytes,
                received_bytes=self._traffic.received_bytes,
            ):
                self._on_change()
            await trio.sleep(TICK_S)

    def reports(self) -> tuple[LinkReport, ...]:
        """Return what there is to tell, of those first that moved most since they were told of."""
        sent, received, dials = self._traffic.sent_to, self._traffic.verified_from, self._dials()
        counters = {
            peer: (sent.get(peer, 0), received.get(peer, 0)) for peer in {**sent, **received}
        }
        news = {
            peer: sum(now) - sum(self._told.get(peer, (0, 0))) for peer, now in counters.items()
        }
        peers = sorted(
            {*(peer for peer, moved in news.items() if moved), *dials},
            key=lambda peer: (-news.get(peer, 0), peer),
        )[:MAX_LINKS]
        reports = [
            LinkReport(peer, *counters.get(peer, (0, 0)), dials.get(peer, Dial.UNTRIED))
            for peer in peers
        ]
        self._told.update((peer, counters[peer]) for peer in peers if peer in counters)
        return tuple(reports)


class OwnCap:
    """Leaves a part of the line to its owner, once it is known what the line carries.

    The most that was ever measured counts: what is measured under a cap is the cap.
    """

    def __init__(self, budget: UploadBudget) -> None:
        self._budget = budget
        self._most_bytes_per_s = 0.0

    def measured(self, bytes_per_s: float | None) -> None:
        """Take in what the learner measured."""
        if bytes_per_s is not None and bytes_per_s > self._most_bytes_per_s:
            self._most_bytes_per_s = bytes_per_s
            self._budget.suggest(UPLOAD_SHARE * bytes_per_s)
