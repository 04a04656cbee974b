"""What this node tells of its links, and when: so that the learner can measure them.

The learner takes the time of a transfer from our heartbeats. So one is sent when something
begins to move and when it has stopped, not only every few seconds.
"""

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import trio

from echo2swarm.weights.transfer.rate_limit import UploadBudget
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.heartbeat import MAX_LINKS, Dial, LinkReport
from protocols.ids import PeerId

TICK_S: Final = 0.25
MEASURE_SENDING_S: Final = 20.0
CAPPED_S: Final = 600.0
MAX_WAITED_S: Final = 10.0
UPLOAD_SHARE: Final = 0.8
"""Of the measured upload, unless the contributor says how much."""
STOPPED_TICKS: Final = 2
"""Nothing for so many ticks is an end; a gap shorter than that is none."""


class Flow:
    """When bytes moved, seen by looking at counters now and then; without a clock."""

    def __init__(self) -> None:
        self.receiving_s = 0.0
        """Time in which bytes came in, so far."""
        self.sending_s = 0.0
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
        if sent_bytes > before[0]:
            self.sending_s += since_s
        if self._counters != before:
            self.moved_at_s = now_s
            has_begun, self._num_idle = self._num_idle >= STOPPED_TICKS, 0
            return has_begun
        self._num_idle += 1
        return self._num_idle == STOPPED_TICKS

    def idle_s(self, now_s: float) -> float:
        """Return for how long nothing has moved; since the beginning, if nothing ever did."""
        return now_s if self.moved_at_s is None else now_s - self.moved_at_s


class LinkReporter:
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

    What is measured under a cap is the cap; so there is none until enough was sent without,
    and it is lifted again for as long, now and then, if senders have to wait because of it.
    """

    def __init__(self, budget: UploadBudget) -> None:
        self._budget = budget
        self._most_bytes_per_s = 0.0
        self._free_until_sending_s: float | None = MEASURE_SENDING_S
        """There is no cap until we have been sending for so long; None: there is one."""
        self._capped_at = (0.0, 0.0)
        """The time, and how long senders had waited by then."""

    def look(self, now_s: float, *, measured_bytes_per_s: float | None, sending_s: float) -> None:
        """Decide anew.

        Args:
            now_s: the time.
            measured_bytes_per_s: our upload, as the learner measured it.
            sending_s: for how long we have been sending, so far.
        """
        if self._free_until_sending_s is None:
            at_s, waited_s = self._capped_at
            is_old = now_s - at_s >= CAPPED_S
            if is_old and self._budget.waited_s - waited_s >= MAX_WAITED_S:
                self._budget.suggest(None)
                self._most_bytes_per_s = 0.0
                self._free_until_sending_s = sending_s + MEASURE_SENDING_S
            return
        self._most_bytes_per_s = max(self._most_bytes_per_s, measured_bytes_per_s or 0.0)
        if sending_s >= self._free_until_sending_s and self._most_bytes_per_s > 0:
            self._budget.suggest(UPLOAD_SHARE * self._most_bytes_per_s)
            self._free_until_sending_s = None
            self._capped_at = now_s, self._budget.waited_s
