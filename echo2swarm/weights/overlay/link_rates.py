"""What every link carries, measured from what its two ends say independently; pure.

A node tells in each heartbeat how many bytes of weights it has sent to and received from
each peer. The bytes from A to B count when both have told of them, so nobody's word alone
moves an estimate:

- *how many* is the lesser of what the sender says it sent and the receiver says it got;
- *when* is what the receiver says: within the time since its last heartbeat (by our clock),
  or in less of it if it says that it was receiving for less (never under ``MIN_SPAN_S``);
- the two must be about the same time: what was received was sent then, or a little before;
- what only one of the two told of is forgotten.

Two who lie together can still make each other look fast. It gains them chunks to pass on
early, and these are dealt again when they do not spread.

Counters begin anew with each session: the first report of a session is where counting starts.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from echo2swarm.weights.overlay.peak import PeakRate
from protocols.heartbeat import LinkReport
from protocols.ids import PeerId

MIN_SPAN_S: Final = 0.25
EXPIRE_S: Final = 60.0
BUFFER_S: Final = 10.0
"""What was received was sent at most so long before: it may have lain in buffers."""
LAG_S: Final = 1.0
"""Heartbeats take a moment: what was sent may seem to be sent so long after it was received."""
MAX_BYTES_PER_S: Final = 12.5e9
"""A link faster than 100 Gbit/s is a claim that nobody needs to believe."""
MAX_QUEUED: Final = 16
"""Claims of one pair and side that wait for the other side's."""
MAX_LINKED: Final = 256
"""Peers that one node's claims may be about."""


class LinkRates(Protocol):
    """What others need to know of the links; None is not known yet."""

    def upload_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what ``peer`` can send, to all together."""
        ...

    def download_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what ``peer`` can receive, from all together."""
        ...


@dataclass(slots=True)
class _Span:
    start_s: float
    end_s: float
    num_bytes: int


@dataclass(slots=True)
class _Pair:
    """What flowed from one peer to another, as long as only one of them has told of it."""

    sent: deque[_Span] = field(default_factory=deque)
    received: deque[_Span] = field(default_factory=deque)


@dataclass(slots=True)
class _Reporter:
    session_id: str
    heard_at_s: float
    receiving_s: float
    sent_bytes: dict[PeerId, int] = field(default_factory=dict)
    received_bytes: dict[PeerId, int] = field(default_factory=dict)
    upload: PeakRate = field(default_factory=PeakRate)
    download: PeakRate = field(default_factory=PeakRate)


class RateBook:
    """The measured rates of everybody who reports; implements :class:`LinkRates`.

    Args:
        me: whose own reports are no claims, and not limited.
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._reporters: dict[PeerId, _Reporter] = {}
        self._pairs: dict[tuple[PeerId, PeerId], _Pair] = {}

    def upload_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what ``peer`` can send."""
        reporter = self._reporters.get(peer)
        return None if reporter is None else reporter.upload.bytes_per_s()

    def download_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what ``peer`` can receive."""
        reporter = self._reporters.get(peer)
        return None if reporter is None else reporter.download.bytes_per_s()

    def reported(
        self,
        peer: PeerId,
        links: Iterable[LinkReport],
        *,
        session_id: str,
        receiving_s: float,
        now_s: float,
    ) -> None:
        """Take in what ``peer`` says of its links.

        Args:
            peer: who reports.
            links: bytes since its process started, by peer.
            session_id: which start of its process this is.
            receiving_s: seconds since then in which it received anything.
            now_s: the time here.
        """
        reporter = self._reporters.get(peer)
        if reporter is None:
            reporter = self._reporters[peer] = _Reporter(session_id, now_s, receiving_s)
            is_first = True
        else:
            is_first = reporter.session_id != session_id
        if is_first:
            reporter.session_id = session_id
            reporter.sent_bytes, reporter.received_bytes = {}, {}
        since_s = max(0.0, now_s - reporter.heard_at_s)
        busy_s = receiving_s - reporter.receiving_s
        span_s = min(max(busy_s, MIN_SPAN_S), since_s) if busy_s > 0 else since_s
        reporter.heard_at_s, reporter.receiving_s = now_s, receiving_s
        limit_bytes = MAX_BYTES_PER_S * since_s
        for link in links:
            other = PeerId(link.peer_id)
            # Of those who never report themselves nothing can be confirmed.
            if other == peer or other not in self._reporters:
                continue
            is_full = len(reporter.sent_bytes) >= MAX_LINKED and peer != self._me
            if is_full and other not in reporter.sent_bytes:
                continue
            sent = _gain(reporter.sent_bytes, other, link.bytes_sent, is_first=is_first)
            got = _gain(reporter.received_bytes, other, link.bytes_received, is_first=is_first)
            if sent:
                self._told(self._pair(peer, other).sent, _Span(now_s - since_s, now_s, sent))
            if 0 < got <= limit_bytes:
                span = _Span(now_s - max(span_s, MIN_SPAN_S), now_s, got)
                self._told(self._pair(other, peer).received, span)
            if sent:
                self._match(peer, other, now_s)
            if got:
                self._match(other, peer, now_s)

    def probed(
        self, peer: PeerId, *, upload_bytes_per_s: float, download_bytes_per_s: float
    ) -> None:
        """Take in what a probe by ourselves has shown of a peer that reports."""
        if (reporter := self._reporters.get(peer)) is not None:
            reporter.upload.measured(upload_bytes_per_s)
            reporter.download.measured(download_bytes_per_s)

    def forget(self, peer: PeerId) -> None:
        """Forget all about ``peer``."""
        if self._reporters.pop(peer, None) is None:
            return
        for pair in [pair for pair in self._pairs if peer in pair]:
            del self._pairs[pair]
        for reporter in self._reporters.values():
            reporter.sent_bytes.pop(peer, None)
            reporter.received_bytes.pop(peer, None)

    def _pair(self, sender: PeerId, receiver: PeerId) -> _Pair:
        return self._pairs.setdefault((sender, receiver), _Pair())

    @staticmethod
    def _told(queue: deque[_Span], span: _Span) -> None:
        queue.append(span)
        if len(queue) > MAX_QUEUED:
            queue.popleft()

    def _match(self, sender: PeerId, receiver: PeerId, now_s: float) -> None:
        """Count what both have told of, oldest first."""
        pair = self._pairs.get((sender, receiver))
        if pair is None:
            return
        for queue in (pair.sent, pair.received):
            while queue and queue[0].end_s < now_s - EXPIRE_S:
                queue.popleft()
        while pair.sent and pair.received:
            sent, received = pair.sent[0], pair.received[0]
            if sent.start_s > received.end_s + LAG_S:
                pair.received.popleft()
                continue
            if sent.end_s < received.start_s - BUFFER_S:
                pair.sent.popleft()
                continue
            both = min(sent.num_bytes, received.num_bytes)
            for rate in (self._reporters[sender].upload, self._reporters[receiver].download):
                rate.flowed(both, start_s=received.start_s, end_s=received.end_s)
            for queue, claim in ((pair.sent, sent), (pair.received, received)):
                claim.num_bytes -= both
                if claim.num_bytes <= 0:
                    queue.popleft()
        if not pair.sent and not pair.received:
            del self._pairs[sender, receiver]


def _gain(known: dict[PeerId, int], peer: PeerId, total: int, *, is_first: bool) -> int:
    """Return by how much a counter grew, and remember it; one that fell starts anew."""
    before = known.get(peer, 0)
    known[peer] = total
    return 0 if is_first or total < before else total - before
