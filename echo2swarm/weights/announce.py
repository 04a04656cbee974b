"""Manifests told to everybody, and given to whoever asks."""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from echo2swarm.network.base import Network
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.system.errors import NetworkError
from protocols import manifest as manifest_protocol
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, RunId, short

REPEAT_S: Final = 15.0
"""So often the newest manifest is gossiped again, for those whom it did not reach."""
CALL_S: Final = 10.0

_log = structlog.get_logger()


def serve_manifests(network: Network, newest: Callable[[], bytes | None]) -> None:
    """From now on, give the newest sealed manifest to whoever asks; an empty frame if none."""

    async def answer(_: PeerId, request: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if request:
            raise MalformedMessageError("a request for the newest manifest is empty")
        return newest() or b""

    serve_calls(
        network,
        manifest_protocol.PROTOCOL_ID,
        answer,
        max_request_bytes=64,
        max_reply_bytes=manifest_protocol.MAX_BYTES,
        timeout_s=CALL_S,
    )


async def ask_for_manifest(network: Network, peer: PeerId) -> bytes | None:
    """Return the newest sealed manifest that ``peer`` knows, unverified; None if it has none.

    Raises:
        NetworkError: the peer can't be reached, or doesn't answer.
        RemoteProtocolError: its answer is over the limit.
    """
    sealed = await call(
        network,
        peer,
        manifest_protocol.PROTOCOL_ID,
        b"",
        max_reply_bytes=manifest_protocol.MAX_BYTES,
        timeout_s=CALL_S,
    )
    return sealed or None


class ManifestAnnouncer:
    """The learner's voice: gossips each new manifest, repeats it, and answers those who ask.

    Announcing never waits for a peer to fetch anything.
    """

    def __init__(self, network: Network, run: RunId) -> None:
        self._network = network
        self._topic = manifest_protocol.topic_of(run)
        self._newest: bytes | None = None
        self._changed = trio.Event()
        serve_manifests(network, lambda: self._newest)

    async def announce(self, sealed: bytes) -> None:
        """Tell everybody of a new version; from now on it is the newest."""
        self._newest = sealed
        self._changed.set()
        self._changed = trio.Event()
        await self._gossip(sealed)

    async def run(self) -> None:
        """Repeat the newest manifest now and then, until cancelled."""
        while True:
            with trio.move_on_after(REPEAT_S) as unchanged:
                await self._changed.wait()
            if unchanged.cancelled_caught and self._newest is not None:
                await self._gossip(self._newest)

    async def _gossip(self, sealed: bytes) -> None:
        try:
            await self._network.publish(self._topic, sealed)
        except NetworkError as exc:
            # Nodes ask for it, too: nothing is lost but time.
            _log.warning("manifest.not_gossiped", peer=short(self._network.peer), error=str(exc))
