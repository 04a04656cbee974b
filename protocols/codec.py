"""One way in and one way out for every message: limits first, then a typed decode."""

from types import UnionType
from typing import Any, TypeVar, overload

import msgspec

from protocols.errors import LocalProtocolError, MalformedMessageError
from protocols.reasons import Reason

T = TypeVar("T")


Data = bytes | memoryview
"""What is decoded; fields that are views are views of it."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything that travels: immutable, and strict about its fields."""


def encode(message: msgspec.Struct, *, max_bytes: int) -> bytes:
    """Return ``message`` as msgpack.

    Raises:
        LocalProtocolError: it is longer than the protocol allows; the peer would refuse it.
    """
    data = msgspec.msgpack.encode(message)
    if len(data) > max_bytes:
        raise LocalProtocolError(
            f"{type(message).__name__} of {len(data)} bytes, limit {max_bytes}"
        )
    return data


@overload
def decode(data: Data, kind: type[T], *, max_bytes: int) -> T: ...
@overload
def decode(data: Data, kind: UnionType, *, max_bytes: int) -> Any: ...  # noqa: ANN401


def decode(data: Data, kind: Any, *, max_bytes: int) -> Any:
    """Parse one message; checks size, shape and every stated limit.

    Args:
        data: what came from the peer.
        kind: a message, or a union of tagged ones; annotate the result of the latter.
        max_bytes: the protocol's limit.

    Raises:
        MalformedMessageError: ``data`` is too long or is not a ``kind``.
    """
    if len(data) > max_bytes:
        raise MalformedMessageError(
            f"message of {len(data)} bytes, limit {max_bytes}", reason=Reason.TOO_LARGE
        )
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as exc:
        # The text quotes the peer, who must not fill our logs.
        name = getattr(kind, "__name__", str(kind))
        raise MalformedMessageError(f"not a valid {name}: {str(exc)[:200]}") from exc
