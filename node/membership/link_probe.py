"""Asks the learner to measure our link, once, when the first version is here and all is quiet."""

from typing import Final, Protocol

import structlog
import trio

from echo2swarm.network.base import Network
from echo2swarm.system.errors import NetworkError
from echo2swarm.text.format import format_bytes
from echo2swarm.weights.overlay.link_probe import MayISend, hear, receive_blocks, say, send_blocks
from protocols import probe
from protocols.errors import RemoteProtocolError
from protocols.ids import PeerId
from protocols.probe import ProbeGo, ProbeRefused, ProbeRequest, ProbeResult

START_S: Final = 5.0
"""After the first version: the engine loads it, and others still fetch theirs."""
PROBE_S: Final = 20.0
"""The whole of it; the learner allows no more either."""
RETRY_S: Final = 60.0
MIN_WAIT_S: Final = 5.0
MAX_FAILURES: Final = 3

log = structlog.get_logger()


class Quiet(Protocol):
    """When the link may be measured without harm to other transfers, nor by them."""

    @property
    def is_now(self) -> bool:
        """Whether it may be now."""
        ...

    async def wait(self) -> None:
        """Return when it may be."""
        ...


class Prober:
    """Has our link measured; whatever comes of it, nothing else depends on it.

    Args:
        network: ours.
        learner: whom to ask.
        run_id: which run.
        quiet: when we hold a version and transfer nothing.
        may_i_send: the cap of the contributor, if there is one.
    """

    def __init__(
        self,
        network: Network,
        *,
        learner: PeerId,
        run_id: str,
        quiet: Quiet,
        may_i_send: MayISend | None = None,
    ) -> None:
        self._network = network
        self._learner = learner
        self._run_id = run_id
        self._quiet = quiet
        self._may_i_send = may_i_send

    async def run(self) -> None:
        """Return when the link was measured, or could not be."""
        num_failures, wait_s = 0, START_S
        while num_failures < MAX_FAILURES:
            await self._quiet.wait()
            await trio.sleep(wait_s)
            if not self._quiet.is_now:
                continue
            try:
                with trio.fail_after(PROBE_S):
                    outcome = await probe_link(
                        self._network,
                        learner=self._learner,
                        run_id=self._run_id,
                        may_i_send=self._may_i_send,
                    )
            except (NetworkError, RemoteProtocolError, trio.TooSlowError) as exc:
                num_failures, wait_s = num_failures + 1, RETRY_S
                log.info("link.not_measured", error=str(exc) or "it took too long")
                continue
            if isinstance(outcome, ProbeResult):
                log.info(
                    "link.measured",
                    upload=f"{format_bytes(outcome.upload_bytes_per_s)}/s",
                    download=f"{format_bytes(outcome.download_bytes_per_s)}/s",
                )
                return
            wait_s = max(outcome.retry_after_s, MIN_WAIT_S)
            log.debug("probe.refused", reason=outcome.reason.value, retry_s=wait_s)


async def probe_link(
    network: Network, *, learner: PeerId, run_id: str, may_i_send: MayISend | None = None
) -> ProbeResult | ProbeRefused:
    """Have our link measured once.

    Raises:
        NetworkError: the learner is gone.
        RemoteProtocolError: it does not keep to the protocol.
    """
    async with network.open_stream(
        learner, probe.PROTOCOL_ID, max_frame_bytes=probe.MAX_FRAME_BYTES, bulk=True
    ) as stream:
        await say(stream, ProbeRequest(run_id))
        answer = await hear(stream)
        if isinstance(answer, ProbeRefused):
            return answer
        if not isinstance(answer, ProbeGo):
            raise RemoteProtocolError(f"{type(answer).__name__} instead of ProbeGo")
        await send_blocks(stream, may_i_send=may_i_send)
        await receive_blocks(stream)
        result = await hear(stream)
        if not isinstance(result, ProbeResult):
            raise RemoteProtocolError(f"{type(result).__name__} instead of ProbeResult")
        return result
