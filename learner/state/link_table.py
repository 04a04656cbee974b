"""The run's links, as the learner knows them: rates, who can be dialled, who trades with whom.

Puts together what :mod:`echo2swarm.weights.overlay` finds out from heartbeats; implements
:class:`~echo2swarm.weights.overlay.link_rates.LinkRates`.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from echo2swarm.weights.overlay.broadcast_bound import broadcast_bound_s
from echo2swarm.weights.overlay.link_rates import RateBook
from echo2swarm.weights.overlay.reachability import ReachBook
from echo2swarm.weights.overlay.tracker import OverlayTracker
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.advert import NodeAdvert
from protocols.heartbeat import Dial, Heartbeat, LinkReport, PeerReport
from protocols.ids import PeerId, short
from protocols.reasons import Reason
from protocols.status import Reachability

TICK_S: Final = 1.0
SENDING_S: Final = 2.0
"""The learner counts as sending until it has sent nothing for this long."""
_OUR_SESSION: Final = "learner"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """What status shows of a node's links."""

    upload_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    reachability: Reachability = Reachability.UNKNOWN
    num_neighbours: int = 0
    warning: str = ""


class LinkTable:
    """Everybody's links; without I/O, the caller passes the time.

    Args:
        me: the learner.
        traffic: what the learner itself sent.
        rng: decides who is paired with whom.
        max_upload_bytes_per_s: the cap on the learner's own uploads, if it has one.
    """

    def __init__(
        self,
        me: PeerId,
        traffic: Traffic,
        rng: random.Random,
        *,
        max_upload_bytes_per_s: float | None = None,
    ) -> None:
        self._me = me
        self._traffic = traffic
        self._max_upload = max_upload_bytes_per_s
        self._rates = RateBook(me)
        self._reach = ReachBook()
        self._tracker = OverlayTracker(rng)
        self._reachability: dict[PeerId, Reachability] = {}
        self._has_address: dict[PeerId, bool] = {}
        self._sent_bytes = 0
        self._sent_at_s: float | None = None

    # What is asked.

    def upload_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what ``peer`` can send, as measured; None if that is not known."""
        return self._rates.upload_bytes_per_s(peer)

    def dealing_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what counts when chunks are dealt: as good as nothing for one that is shut out."""
        if self._tracker.bans.banned_until_s(peer) is not None:
            return 1.0
        return self.upload_bytes_per_s(peer)

    def download_bytes_per_s(self, peer: PeerId) -> float | None:
        """Return what ``peer`` can receive, as measured; None if that is not known."""
        return self._rates.download_bytes_per_s(peer)

    @property
    def own_upload_bytes_per_s(self) -> float | None:
        """What the learner can send, as measured, or may send."""
        rates = (self._rates.upload_bytes_per_s(self._me), self._max_upload)
        return min((rate for rate in rates if rate is not None), default=None)

    def neighbours_of(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Return whom ``peer`` is to exchange chunks with."""
        return self._tracker.neighbours_of(peer)

    def is_sending(self, now_s: float) -> bool:
        """Whether the learner sends weights."""
        if self._traffic.sent_bytes > self._sent_bytes:
            return True
        return self._sent_at_s is not None and now_s - self._sent_at_s < SENDING_S

    def expected_broadcast_s(self, payload_bytes: int, peers: Sequence[PeerId]) -> float | None:
        """Return the least time to bring a payload to ``peers``; None before links are measured.

        Who was not measured yet is taken for as fast as the typical one that was.
        """
        source = self.own_upload_bytes_per_s
        uploads = _filled(self._rates.upload_bytes_per_s(peer) for peer in peers)
        downloads = _filled(self._rates.download_bytes_per_s(peer) for peer in peers)
        if not source or not uploads or not downloads or min(downloads) <= 0:
            return None
        return broadcast_bound_s(
            payload_bytes,
            source_bytes_per_s=source,
            up_bytes_per_s=uploads,
            down_bytes_per_s=downloads,
        )

    def status(self, peer: PeerId, now_s: float) -> LinkStatus:
        """Return what status shows of ``peer``."""
        return LinkStatus(
            upload_bytes_per_s=self._rates.upload_bytes_per_s(peer),
            download_bytes_per_s=self._rates.download_bytes_per_s(peer),
            reachability=self._reachability.get(peer, Reachability.UNKNOWN),
            num_neighbours=len(self._tracker.neighbours_of(peer)),
            warning=self.warning_of(peer, now_s),
        )

    def warning_of(self, peer: PeerId, now_s: float) -> str:
        """Return what the contributor of ``peer`` should see to, if there is anything."""
        until_s = self._tracker.bans.banned_until_s(peer)
        if until_s is None:
            return ""
        return (
            "shut out: three nodes got wrong bytes of weights from this one; check its disk and "
            f"memory. For {max(1, round((until_s - now_s) / 60))} min it gets them from the "
            "learner alone"
        )

    # What happens.

    def heard(
        self, peer: PeerId, beat: Heartbeat, advert: NodeAdvert, now_s: float, *, is_start: bool
    ) -> None:
        """Take in a heartbeat of a node that takes part.

        Args:
            peer: whose.
            beat: what it said.
            advert: what it is.
            now_s: the time.
            is_start: whether its process is new, or it is back after a silence.
        """
        if is_start or peer not in self._reachability:
            self._reach.began(peer)
            self._reachability[peer] = Reachability.UNKNOWN
        self._has_address[peer] = bool(advert.addresses)
        self._rates.reported(
            peer,
            beat.links,
            session_id=beat.session_id,
            receiving_s=beat.receiving_s,
            now_s=now_s,
        )
        self._reach.reported(peer, beat.links, now_s)
        self._tracker.joined(peer, is_reachable=self._judge(peer, now_s) is not Reachability.NO)
        if (upload := self._rates.upload_bytes_per_s(peer)) is not None:
            self._tracker.rated(peer, upload)

    def gone(self, peer: PeerId) -> None:
        """Note that a node has left or was lost. What was measured is kept: it may be back."""
        self._reach.ended(peer)
        self._reachability.pop(peer, None)
        self._has_address.pop(peer, None)
        self._tracker.left(peer)

    def forget(self, peer: PeerId) -> None:
        """Forget a node for good."""
        self.gone(peer)
        self._rates.forget(peer)

    def reported(self, reporter: PeerId, report: PeerReport, now_s: float) -> None:
        """Take in what one node had to refuse from another."""
        culprit = PeerId(report.peer_id)
        if report.reason is not Reason.BAD_CHUNK_HASH:
            return
        if self._tracker.reported(reporter, culprit, now_s):
            log.error(
                "peer.shut_out",
                peer=short(culprit),
                why="three nodes got wrong bytes from it",
                until_s=self._tracker.bans.banned_until_s(culprit),
            )

    def probed(self, peer: PeerId, upload_bytes_per_s: float, download_bytes_per_s: float) -> None:
        """Take in the result of a probe."""
        self._rates.probed(
            peer,
            upload_bytes_per_s=upload_bytes_per_s,
            download_bytes_per_s=download_bytes_per_s,
        )

    def tick(self, now_s: float) -> None:
        """Do what time brings; to be called every ``TICK_S``."""
        if self._traffic.sent_bytes > self._sent_bytes:
            self._sent_at_s = now_s
        self._sent_bytes = self._traffic.sent_bytes
        self._rates.reported(
            self._me,
            [LinkReport(p, n, 0, Dial.UNTRIED) for p, n in self._traffic.sent_to.items()],
            session_id=_OUR_SESSION,
            receiving_s=0.0,
            now_s=now_s,
        )
        for peer in self._tracker.bans.forgive(now_s):
            log.info("peer.forgiven", peer=short(peer))
        for peer, before in list(self._reachability.items()):
            found = self._judge(peer, now_s)
            if found is not before:
                self._reachability[peer] = found
                log.info("peer.reachability", peer=short(peer), reachable=found.value)
                self._tracker.reach_changed(peer, is_reachable=found is not Reachability.NO)

    def _judge(self, peer: PeerId, now_s: float) -> Reachability:
        found = self._reach.reachability(
            peer, num_neighbours=len(self._tracker.neighbours_of(peer)), now_s=now_s
        )
        is_hidden = found is Reachability.UNKNOWN and not self._has_address.get(peer)
        return Reachability.NO if is_hidden else found


def _filled(rates: Iterable[float | None]) -> list[float]:
    """Return the rates with the median for those that are unknown; nothing if all are."""
    listed = list(rates)
    known = sorted(rate for rate in listed if rate is not None)
    if not known:
        return []
    return [known[len(known) // 2] if rate is None else rate for rate in listed]
