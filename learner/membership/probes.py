"""Measures a node's link when it asks, one node at a time; ``/echo2/probe``."""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from echo2swarm.network.base import Network, ServeLimits, Stream
from echo2swarm.weights.overlay.link_probe import hear, receive_blocks, say, send_blocks
from protocols import probe
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId, short
from protocols.probe import ProbeGo, ProbeRefused, ProbeRequest, ProbeResult
from protocols.reasons import Reason

PROBE_S: Final = 20.0
AGAIN_S: Final = 600.0
BUSY_S: Final = 10.0
MAX_WAITING: Final = 16
MAX_REMEMBERED: Final = 4096

log = structlog.get_logger()

OnMeasured = Callable[[PeerId, float, float], None]
"""Gets the peer, its upload and its download in bytes per second."""


class ProbeService:
    """Answers nodes that want to be measured.

    Args:
        run_id: which run.
        is_member: whether a peer takes part.
        is_sending: whether we send weights just now: both would be slower, and measured wrong.
        on_measured: told of each result.
    """

    def __init__(
        self,
        *,
        run_id: str,
        is_member: Callable[[PeerId], bool],
        is_sending: Callable[[], bool],
        on_measured: OnMeasured,
    ) -> None:
        self._run_id = run_id
        self._is_member = is_member
        self._is_sending = is_sending
        self._on_measured = on_measured
        self._is_probing = False
        self._probed_at_s: dict[PeerId, float] = {}

    def serve(self, network: Network) -> None:
        """From now on, answer."""
        network.serve(
            probe.PROTOCOL_ID,
            self._serve,
            ServeLimits(
                max_frame_bytes=probe.MAX_FRAME_BYTES,
                max_streams=MAX_WAITING,
                max_streams_per_peer=1,
                timeout_s=PROBE_S,
            ),
        )

    async def _serve(self, stream: Stream) -> None:
        request = await hear(stream)
        if not isinstance(request, ProbeRequest):
            raise RemoteProtocolError(f"{type(request).__name__} instead of ProbeRequest")
        refusal = self._refusal(stream.peer, request, trio.current_time())
        if refusal is not None:
            await say(stream, refusal)
            return
        self._is_probing = True
        self._remember(stream.peer, trio.current_time())
        try:
            await say(stream, ProbeGo())
            upload = await receive_blocks(stream)
            download = await send_blocks(stream)
            await say(stream, ProbeResult(upload or 0.0, download or 0.0))
        finally:
            self._is_probing = False
        log.info(
            "node.measured",
            peer=short(stream.peer),
            upload_bytes_per_s=upload and round(upload),
            download_bytes_per_s=download and round(download),
        )
        if upload is not None and download is not None:
            self._on_measured(stream.peer, upload, download)

    def _refusal(self, peer: PeerId, request: ProbeRequest, now_s: float) -> ProbeRefused | None:
        if request.run_id != self._run_id:
            return ProbeRefused(Reason.WRONG_RUN, AGAIN_S)
        if not self._is_member(peer):
            return ProbeRefused(Reason.NOT_A_MEMBER, BUSY_S)
        if self._is_probing or self._is_sending():
            return ProbeRefused(Reason.RATE_LIMITED, BUSY_S)
        at_s = self._probed_at_s.get(peer)
        if at_s is not None and now_s < at_s + AGAIN_S:
            return ProbeRefused(Reason.RATE_LIMITED, at_s + AGAIN_S - now_s)
        return None

    def _remember(self, peer: PeerId, now_s: float) -> None:
        self._probed_at_s.pop(peer, None)
        self._probed_at_s[peer] = now_s
        if len(self._probed_at_s) > MAX_REMEMBERED:
            del self._probed_at_s[next(iter(self._probed_at_s))]
