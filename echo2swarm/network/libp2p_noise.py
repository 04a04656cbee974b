"""Noise and yamux as libp2p offers them, made safe to cancel and hard to crash.

The stock session encrypts, which spends a nonce, and only then reaches a
checkpoint: one cancelled read, write or new stream puts the two sides out of
step and ends the connection with all its streams. Here a message once
encrypted is also sent. Reads take what the socket has in one call.
"""

from typing import Final

import structlog
import trio
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.security.noise.io import NoiseTransportReadWriter
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.yamux.yamux import Yamux

WRITE_TIMEOUT_S: Final = 15.0
"""A peer whose TCP takes no byte for so long is gone: the write can't be abandoned otherwise."""
READ_BYTES: Final = 256 * 1024
"""One receive brings up to four Noise messages, instead of two receives for each."""
_LENGTH_BYTES: Final = 2

_log = structlog.get_logger()


class _BufferedReadWriter(NoiseTransportReadWriter):  # type: ignore[misc]  # untyped library
    """Takes over an established Noise channel, and reads it through a buffer."""

    def __init__(self, established: NoiseTransportReadWriter) -> None:
        super().__init__(established.read_writer.read_write_closer, established.noise_state)
        self._buffer = bytearray()

    async def read_msg(self, prefix_encoded: bool = False) -> bytes:
        """Return the next message; a prefix occurs only in the handshake, which is over."""
        while True:
            if len(self._buffer) >= _LENGTH_BYTES:
                end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
                if len(self._buffer) >= end:
                    message = bytes(self._buffer[_LENGTH_BYTES:end])
                    del self._buffer[:end]
                    return bytes(self.decrypt(message))
            # A cancelled receive has taken nothing from the socket.
            data = await self.read_writer.read_write_closer.read(READ_BYTES)
            if not data:
                return b""
            self._buffer += data


class _Session(SecureSession):  # type: ignore[misc]  # untyped library
    """A secure session that sends whole messages or closes."""

    def __init__(self, session: SecureSession) -> None:
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=_BufferedReadWriter(session.conn),
        )

    async def write(self, data: bytes) -> None:
        deadline_s = trio.current_time() + WRITE_TIMEOUT_S
        with trio.CancelScope(shield=True, deadline=deadline_s):
            await super().write(data)
            return
        # Half a message is on the wire: nothing that follows would make sense.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await self.close()
        raise ConnectionClosedError("write timed out", transport="tcp")


class SafeNoise(Transport):  # type: ignore[misc]  # untyped library
    """The Noise handshake of the library, and sessions that survive cancellation."""

    async def secure_inbound(self, conn: object) -> _Session:
        """Secure a connection that a peer opened."""
        return _Session(await super().secure_inbound(conn))

    async def secure_outbound(self, conn: object, peer_id: object) -> _Session:
        """Secure a connection that we opened to ``peer_id``."""
        return _Session(await super().secure_outbound(conn, peer_id))


class GuardedYamux(Yamux):  # type: ignore[misc]  # untyped library
    """Yamux whose failure on one connection ends that connection, not the host."""

    async def start(self) -> None:
        """Run the connection until it ends."""
        try:
            await super().start()
        except Exception as exc:
            _log.debug("connection.failed", peer=str(self.peer_id)[-8:], error=repr(exc)[:200])
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self.close()
            # Who waits for the start is to find it closed, not to wait for ever.
            self.event_started.set()


def security_options(key_pair: KeyPair) -> dict[str, SafeNoise]:
    """Return the one security protocol we speak.

    Left to itself the library also offers plaintext, over which anybody who knows
    a peer's public key can pass for it.
    """
    return {NOISE: SafeNoise(key_pair, noise_privkey=create_new_key_pair().private_key)}
