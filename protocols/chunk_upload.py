"""Answering one downloader's stream, about one payload after the other, without I/O.

Specification: ``docs/specs/chunks.md``, protocol ``/echo2/chunks/2.1.0``.

The caller reports each request, and performs what it gets back, in order. What
a downloader may do wrong raises; the caller then breaks the stream off::

    NEW --Open--> LOOKING_UP --found--> OPEN (WantHashes, WantChunk, Held, any number)
     ^                +--not found--> CLOSED      |
     +---------------------- Done ----------------+
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from protocols.chunks import (
    MAX_OUTSTANDING,
    DownloadDone,
    Held,
    OpenPayload,
    Request,
    WantChunk,
    WantHashes,
)
from protocols.errors import LocalProtocolError, RemoteProtocolError
from protocols.reasons import Reason


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find the payload with this root, and report with ``found`` or ``not_found``."""

    root_sha256: bytes
    held: bytes
    """Bitmap of what the downloader has, unchecked."""


@dataclass(frozen=True, slots=True)
class SendHashes:
    """Send the chunk hashes, then report with ``answered``."""


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Read and send one chunk, then report with ``answered``."""

    index: int


@dataclass(frozen=True, slots=True)
class SendRefusal:
    """Send a refusal; if it is an answer to a request (has an index), report with ``answered``."""

    reason: Reason
    index: int | None = None


@dataclass(frozen=True, slots=True)
class NoteHeld:
    """The downloader has come to hold these chunks; nothing is to be answered."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The downloader wants no more: drop what is not answered yet; another payload may follow."""


Effect = LookUp | NoteHeld | SendHashes | SendChunk | SendRefusal | EndTurn


class _State(Enum):
    NEW = auto()
    LOOKING_UP = auto()
    OPEN = auto()
    CLOSED = auto()


class UploadSession:
    """One downloader's stream, as its holder sees it."""

    def __init__(self) -> None:
        self._state = _State.NEW
        self._num_chunks = 0
        self._holds: Callable[[int], bool] = _holds_nothing
        self._num_outstanding = 0

    def request_received(self, request: Request) -> Effect:
        """Take a downloader's request; returns the answer to make.

        Raises:
            RemoteProtocolError: the downloader broke the protocol.
        """
        if isinstance(request, OpenPayload):
            if self._state is not _State.NEW:
                raise RemoteProtocolError("opened a payload before the last was done")
            self._state = _State.LOOKING_UP
            return LookUp(request.root_sha256, request.held)
        if self._state is not _State.OPEN:
            raise RemoteProtocolError("asked before the stream was open")
        if isinstance(request, DownloadDone):
            self._state, self._num_outstanding = _State.NEW, 0
            self._holds = _holds_nothing
            return EndTurn()
        if isinstance(request, Held):
            self._check(max(request.indices))
            return NoteHeld(request.indices)
        if self._num_outstanding >= MAX_OUTSTANDING:
            raise RemoteProtocolError(
                f"more than {MAX_OUTSTANDING} requests at once", reason=Reason.RATE_LIMITED
            )
        effect = self._answer_to(request)
        self._num_outstanding += 1
        return effect

    def found(self, *, num_chunks: int, holds: Callable[[int], bool]) -> None:
        """Note that the payload is here: from now on, chunks may be asked for."""
        self._leave_look_up(_State.OPEN)
        self._num_chunks, self._holds = num_chunks, holds

    def not_found(self) -> SendRefusal:
        """Note that the payload is not here; send the refusal, and end the stream."""
        self._leave_look_up(_State.CLOSED)
        return SendRefusal(Reason.UNKNOWN_PAYLOAD)

    def answered(self) -> None:
        """Note that an answer was sent, of those asked for since the last :class:`EndTurn`."""
        if not self._num_outstanding:
            raise LocalProtocolError("answered what was not asked")
        self._num_outstanding -= 1

    def _leave_look_up(self, state: _State) -> None:
        if self._state is not _State.LOOKING_UP:
            raise LocalProtocolError("no payload is being looked up")
        self._state = state

    def _check(self, index: int) -> None:
        if index >= self._num_chunks:
            raise RemoteProtocolError(
                f"spoke of chunk {index} of {self._num_chunks}", reason=Reason.UNKNOWN_CHUNK
            )

    def _answer_to(self, request: WantHashes | WantChunk) -> Effect:
        if isinstance(request, WantHashes):
            return SendHashes()
        self._check(request.index)
        if not self._holds(request.index):
            return SendRefusal(Reason.UNKNOWN_CHUNK, request.index)
        return SendChunk(request.index)


def _holds_nothing(_: int) -> bool:
    return False
