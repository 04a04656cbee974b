"""Noise as libp2p offers it, made safe to cancel, and cheap per message.

The stock session encrypts, which spends a nonce, and only then reaches a
checkpoint: one cancelled read, write or new stream puts the two sides out of
step and ends the connection with all its streams. Here a message once
encrypted is also sent. Reads take what the socket has in one call.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio
from libp2p.abc import IRawConnection
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.io.exceptions import ConnectionClosedError, IncompleteReadError
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport
from libp2p.security.secure_session import SecureSession

WRITE_TIMEOUT_S: Final = 15.0
"""A peer whose TCP takes no byte for so long is gone: the write can't be abandoned otherwise."""
READ_BYTES: Final = 256 * 1024
"""One receive brings up to four Noise messages, instead of two receives for each."""
_LENGTH_BYTES: Final = 2

BeforeInbound = Callable[[IRawConnection], Awaitable[None]]
"""Given a connection that a peer opened and wants to secure."""


class _BufferedReadWriter(NoiseTransportReadWriter):  # type: ignore[misc]  # untyped library
    """Takes over an established Noise channel; moves many messages in one system call."""

    def __init__(self, established: NoiseTransportReadWriter) -> None:
        super().__init__(established.read_writer.read_write_closer, established.noise_state)
        # Unlike the library's own name for it, this one takes a part of a buffer.
        self._decrypt = self.noise_state.noise_protocol.cipher_state_decrypt.decrypt_with_ad
        self._data = b""
        self._position = 0

    async def read_msg(self, prefix_encoded: bool = False) -> bytes:
        """Return the next message; a prefix occurs only in the handshake, which is over."""
        while True:
            start = self._position + _LENGTH_BYTES
            end = start + int.from_bytes(self._data[self._position : start], "big")
            if start <= len(self._data) and end <= len(self._data):
                self._position = end
                return bytes(self._decrypt(None, memoryview(self._data)[start:end]))
            # A cancelled receive has taken nothing from the socket.
            data = await self.read_writer.read_write_closer.read(READ_BYTES)
            if not data:
                return b""
            self._data = self._data[self._position :] + data
            self._position = 0

    async def write_msgs(self, messages: Iterable[bytes]) -> None:
        """Send messages of no more than ``MAX_PLAINTEXT_LENGTH``, all in one write."""
        parts: list[bytes] = []
        for message in messages:
            encrypted = self.encrypt(message)
            parts += (len(encrypted).to_bytes(_LENGTH_BYTES, "big"), encrypted)
        await self.read_writer.read_write_closer.write(b"".join(parts))


class FrameSession(SecureSession):  # type: ignore[misc]  # untyped library
    """A secure session that sends whole messages or closes.

    Who reads frames from it can have those it knows taken out in passing: ``skim`` is
    given what has arrived and a position in it, and returns the position of the
    first byte that it leaves to :meth:`read`.
    """

    def __init__(self, session: SecureSession) -> None:
        super().__init__(
            local_peer=session.local_peer,
            local_private_key=session.local_private_key,
            remote_peer=session.remote_peer,
            remote_permanent_pubkey=session.remote_permanent_pubkey,
            is_initiator=session.is_initiator,
            conn=_BufferedReadWriter(session.conn),
        )
        self.skim: Callable[[bytes, int], int] | None = None
        self.on_received: Callable[[int], None] | None = None
        self._body = bytearray()
        self._plain = b""
        self._position = 0

    async def read(self, n: int | None = None) -> bytes:
        """Return ``n`` bytes, or what there is if that is None; fewer only at the end."""
        while True:
            if self.skim is not None:
                self._position = self.skim(self._plain, self._position)
            num_here = len(self._plain) - self._position
            if num_here and (n is None or num_here >= n):
                return self._take(num_here if n is None else n)
            if not await self._receive():
                if num_here:
                    return self._take(num_here)
                raise ConnectionClosedError("Connection closed")

    async def read_body(self, num_bytes: int) -> bytes:
        """Return ``num_bytes`` in which there is nothing to skim."""
        self._body = bytearray(self._take(num_bytes))
        try:
            while len(self._body) < num_bytes:
                if not await self._receive():
                    raise IncompleteReadError(
                        "connection ended in mid-frame",
                        expected_bytes=num_bytes,
                        received_bytes=len(self._body),
                    )
                self._body += self._take(num_bytes - len(self._body))
            return bytes(self._body)
        finally:
            self._body = bytearray()

    @property
    def num_held_bytes(self) -> int:
        """How much has arrived of frames that are not whole yet."""
        return len(self._plain) - self._position + len(self._body)

    def _take(self, num_bytes: int) -> bytes:
        taken = self._plain[self._position : self._position + num_bytes]
        self._position += len(taken)
        return taken

    async def _receive(self) -> bool:
        message = await self.conn.read_msg()
        self._plain = self._plain[self._position :] + message
        self._position = 0
        if self.on_received is not None:
            self.on_received(len(message))
        return bool(message)

    async def write(self, data: bytes) -> None:
        """Send ``data``, in as many messages as it takes."""
        starts = range(0, len(data), MAX_PLAINTEXT_LENGTH)
        await self.write_messages([data[i : i + MAX_PLAINTEXT_LENGTH] for i in starts])

    async def write_messages(self, messages: Iterable[bytes]) -> None:
        """Send ``messages``, none of which is over ``MAX_PLAINTEXT_LENGTH``."""
        deadline_s = trio.current_time() + WRITE_TIMEOUT_S
        with trio.CancelScope(shield=True, deadline=deadline_s):
            await self.conn.write_msgs(messages)
            return
        # Half a message is on the wire: nothing that follows would make sense.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await self.close()
        raise ConnectionClosedError("write timed out", transport="tcp")


class SafeNoise(Transport):  # type: ignore[misc]  # untyped library
    """The Noise handshake of the library, and sessions that survive cancellation.

    Args:
        key_pair: whose we are.
        before_inbound: waited for before a handshake that a peer began.
    """

    def __init__(self, key_pair: KeyPair, before_inbound: BeforeInbound | None) -> None:
        super().__init__(key_pair, noise_privkey=create_new_key_pair().private_key)
        self._before_inbound = before_inbound

    async def secure_inbound(self, conn: IRawConnection) -> FrameSession:
        """Secure a connection that a peer opened."""
        if self._before_inbound is not None:
            await self._before_inbound(conn)
        return FrameSession(await super().secure_inbound(conn))

    async def secure_outbound(self, conn: object, peer_id: object) -> FrameSession:
        """Secure a connection that we opened to ``peer_id``."""
        return FrameSession(await super().secure_outbound(conn, peer_id))


def security_options(
    key_pair: KeyPair, before_inbound: BeforeInbound | None = None
) -> dict[str, SafeNoise]:
    """Return the one security protocol we speak.

    Left to itself the library also offers plaintext, over which anybody who knows
    a peer's public key can pass for it.
    """
    return {NOISE: SafeNoise(key_pair, before_inbound)}
