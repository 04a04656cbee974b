"""Which DHT records are genuine, and which of several is the newest.

Both adapters ask here when they store a record for others and when they read
one, so nobody can plant an advert for a peer without that peer's key.
"""

from collections.abc import Iterable

from protocols import advert
from protocols.advert import NodeAdvert
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.ids import PeerId, RunId

NAMESPACE = "echo2"


def check_record(key: str, value: bytes) -> NodeAdvert:
    """Return the advert that ``value`` is, verified against ``key``.

    Raises:
        RemoteProtocolError: the key is not one of ours, or the value not signed by its peer.
    """
    match key.split("/"):
        case ["", namespace, run, peer] if namespace == NAMESPACE:
            return advert.verify_advert(value, run=RunId(run), peer=PeerId(peer))
        case _:
            raise MalformedMessageError(f"{key[:120]!r} is not the key of an advert")


def newest_record(key: str, values: Iterable[bytes]) -> bytes | None:
    """Return the genuine value with the highest sequence number; None if none is genuine.

    Of equal numbers the greater bytes win, so that all readers agree.
    """
    best: tuple[int, bytes] | None = None
    for value in values:
        try:
            rank = (check_record(key, value).seq, value)
        except RemoteProtocolError:
            continue
        if best is None or rank > best:
            best = rank
    return None if best is None else best[1]
