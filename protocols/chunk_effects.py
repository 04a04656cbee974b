"""What :class:`protocols.chunk_download.ChunkDownload` wants to be done."""

from dataclasses import dataclass

from protocols.ids import PeerId
from protocols.reasons import Reason


@dataclass(frozen=True, slots=True)
class AskHashes:
    """Ask ``holder`` for the list of chunk hashes."""

    holder: PeerId


@dataclass(frozen=True, slots=True)
class AskChunk:
    """Ask ``holder`` for one chunk."""

    holder: PeerId
    index: int


@dataclass(frozen=True, slots=True)
class DropPeer:
    """Close the stream to ``holder``."""

    holder: PeerId
    why: str
    fault: Reason | None = None
    """Set if the holder did what no honest one does."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Every chunk is here."""


Effect = AskHashes | AskChunk | DropPeer | Finished
