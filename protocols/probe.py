"""How fast is the link between a node and the learner; specification: ``docs/specs/probe.md``.

The node opens a bulk stream and asks. First the node sends blocks to the learner, then the
learner to the node; the receiver answers each block, and proves by a hash that it has all
of it. The sender has a little under way at first, and more with every answer: so a slow
link is never filled for long, and a fast one shows what it can do. The learner takes the
time of both ways; the node's clock is not asked.

The cores :class:`ProbeSender` and :class:`ProbeReceiver` are without I/O.
"""

import hashlib
from typing import Annotated, Final

import msgspec

from protocols.codec import Message
from protocols.errors import RemoteProtocolError
from protocols.manifest import Digest
from protocols.reasons import Reason
from protocols.ticket import RunName

PROTOCOL_ID: Final = "/echo2/probe/1.0.0"
MAX_FRAME_BYTES: Final = 64 * 1024
BLOCK_BYTES: Final = 48 * 1024
MAX_BYTES: Final = 2 * 1024 * 1024
"""In each direction."""
MAX_SEND_S: Final = 1.5
"""After this, a sender begins no further block."""
FIRST_WINDOW_BYTES: Final = 128 * 1024
MIN_PROBE_BYTES: Final = BLOCK_BYTES
"""Less than this says nothing about a link."""
MIN_SPAN_S: Final = 0.02
"""A rate is not taken over less: on a fast local link it is a lower bound."""
_RAMP_SHARE: Final = 0.25
"""Of the bytes; until these have arrived, the transport gathers speed."""

BytesPerS = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class ProbeRequest(Message, frozen=True, tag="request"):
    """First message: ask to be measured."""

    run_id: RunName


class ProbeGo(Message, frozen=True, tag="go"):
    """The learner is ready: send your blocks."""


class ProbeRefused(Message, frozen=True, tag="refused"):
    """Not now."""

    reason: Reason
    retry_after_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)]
    """When asking again may help."""


class ProbeBlock(Message, frozen=True, tag="block"):
    """Some bytes, new and random; the last block may be empty."""

    data: Annotated[bytes, msgspec.Meta(max_length=BLOCK_BYTES)]
    is_last: bool


class ProbeSeen(Message, frozen=True, tag="seen"):
    """What the receiver has by now."""

    num_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)]
    sha256: Digest
    """Of all bytes of this direction so far."""


class ProbeResult(Message, frozen=True, tag="result"):
    """Last message: what the learner measured."""

    upload_bytes_per_s: BytesPerS
    """From the node to the learner."""
    download_bytes_per_s: BytesPerS
    """From the learner to the node."""


FromNode = ProbeRequest | ProbeBlock | ProbeSeen
FromLearner = ProbeGo | ProbeRefused | ProbeBlock | ProbeSeen | ProbeResult


class RateMeter:
    """A rate from the times at which bytes are known to have arrived."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def arrived(self, total_bytes: int, now_s: float) -> None:
        """Note that so many bytes have arrived by now, in all."""
        self._samples.append((now_s, total_bytes))

    def bytes_per_s(self) -> float | None:
        """Return the rate once the transport had gathered speed; None if too little came."""
        if not self._samples or self._samples[-1][1] < MIN_PROBE_BYTES:
            return None
        end_s, total = self._samples[-1]
        begin_s, before = next(s for s in self._samples if s[1] >= _RAMP_SHARE * total)
        if before == total:  # all in one sample: there is no span to divide by
            return None
        return (total - before) / max(end_s - begin_s, MIN_SPAN_S)


class ProbeSender:
    """Sends one direction: says how much may be sent, and checks the answers."""

    def __init__(self, now_s: float) -> None:
        self.meter = RateMeter()
        self._stop_at_s = now_s + MAX_SEND_S
        self._sent_bytes = 0
        self._seen_bytes = 0
        self._digest = hashlib.sha256()
        self._unseen: list[tuple[int, bytes]] = []
        """After each block that was not answered yet: the bytes so far, and their hash."""
        self._is_last_sent = False

    @property
    def is_done(self) -> bool:
        """Whether everything was sent and answered."""
        return self._is_last_sent and not self._unseen

    def next_block_bytes(self, now_s: float) -> int | None:
        """Return how large the next block is to be; None: wait for an answer first.

        A block shorter than ``BLOCK_BYTES`` is the last one.
        """
        if self._is_last_sent:
            return None
        left = MAX_BYTES - self._sent_bytes if now_s < self._stop_at_s else 0
        if left < BLOCK_BYTES:
            return left
        under_way = self._sent_bytes - self._seen_bytes
        window = FIRST_WINDOW_BYTES + self._seen_bytes
        return BLOCK_BYTES if under_way + BLOCK_BYTES <= window else None

    def block(self, data: bytes) -> ProbeBlock:
        """Return the block with ``data``, of the size that was asked for; then send it."""
        self._digest.update(data)
        self._sent_bytes += len(data)
        self._unseen.append((self._sent_bytes, self._digest.digest()))
        self._is_last_sent = len(data) < BLOCK_BYTES
        return ProbeBlock(data, self._is_last_sent)

    def seen(self, answer: ProbeSeen, now_s: float) -> None:
        """Take the receiver's answer to a block.

        Raises:
            RemoteProtocolError: it does not have what it says.
        """
        if not self._unseen or self._unseen[0] != (answer.num_bytes, answer.sha256):
            raise RemoteProtocolError("the probe's answer is not about what was sent")
        del self._unseen[0]
        self._seen_bytes = answer.num_bytes
        self.meter.arrived(answer.num_bytes, now_s)


class ProbeReceiver:
    """Receives one direction."""

    def __init__(self) -> None:
        self.meter = RateMeter()
        self.is_done = False
        self._num_bytes = 0
        self._digest = hashlib.sha256()

    def received(self, block: ProbeBlock, now_s: float) -> ProbeSeen:
        """Take a block; returns the answer to send.

        Raises:
            RemoteProtocolError: more than there may be.
        """
        if self.is_done or self._num_bytes + len(block.data) > MAX_BYTES:
            raise RemoteProtocolError("more blocks than a probe has", reason=Reason.TOO_LARGE)
        if len(block.data) < BLOCK_BYTES and not block.is_last:
            raise RemoteProtocolError("a short block that is not the last")
        self._num_bytes += len(block.data)
        self._digest.update(block.data)
        self.is_done = block.is_last
        self.meter.arrived(self._num_bytes, now_s)
        return ProbeSeen(self._num_bytes, self._digest.digest())
