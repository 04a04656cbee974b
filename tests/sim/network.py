"""A network in one process for cores: seeded latency, limited uplinks, virtual time."""

import heapq
import random
from collections.abc import Callable
from itertools import count


class SimNetwork:
    """Delivers callbacks in virtual time; the same seed gives the same run."""

    def __init__(self, *, seed: int, latency_s: tuple[float, float] = (0.01, 0.05)) -> None:
        self.now_s = 0.0
        self.rng = random.Random(seed)
        self._latency_s = latency_s
        self._order = count()  # breaks ties in the order of scheduling
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._link_free_at_s: dict[tuple[str, str], float] = {}
        self._uplink_free_at_s: dict[str, float] = {}

    def call_at(self, when_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when_s, self.now_s), next(self._order), callback))

    def send(
        self, src: str, dst: str, deliver: Callable[[], None], *, uplink_s: float = 0.0
    ) -> None:
        """Deliver after a random latency, in order per link, as a stream does.

        Args:
            src: sender.
            dst: receiver.
            deliver: called at the receiver's.
            uplink_s: how long this occupies the sender's uplink; others wait for it.
        """
        sent_s = max(self.now_s, self._uplink_free_at_s.get(src, 0.0)) + uplink_s
        if uplink_s:
            self._uplink_free_at_s[src] = sent_s
        else:
            sent_s = self.now_s  # control messages do not queue behind data
        arrival_s = sent_s + self.rng.uniform(*self._latency_s)
        if not uplink_s:
            arrival_s = max(arrival_s, self._link_free_at_s.get((src, dst), 0.0))
            self._link_free_at_s[src, dst] = arrival_s
        self.call_at(arrival_s, deliver)

    def run(self, *, until_s: float) -> None:
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, callback = heapq.heappop(self._queue)
            callback()
        self.now_s = until_s
