"""How long a broadcast takes at least, whoever plans it."""

from collections.abc import Sequence


def broadcast_bound_s(
    payload_bytes: float,
    *,
    source_bytes_per_s: float,
    up_bytes_per_s: Sequence[float],
    down_bytes_per_s: Sequence[float],
) -> float:
    """Return the least time in which a source can bring a payload to all peers, in seconds.

    ``max(F / u_s, F / d_min, N F / (u_s + sum u_i))``: the source must send every byte once,
    the slowest must receive every byte, and all copies must be sent by somebody. It is reached
    in the limit of small chunks (Kumar, Ross: "Peer-assisted file distribution: the minimum
    distribution time", IEEE HotWeb 2006).

    Args:
        payload_bytes: F.
        source_bytes_per_s: u_s.
        up_bytes_per_s: u_i of each peer; zero for one that can't upload.
        down_bytes_per_s: d_i of each peer, in the same order.

    Raises:
        ValueError: a rate that is not positive (uploads: negative), or none.
    """
    if len(up_bytes_per_s) != len(down_bytes_per_s):
        raise ValueError(f"{len(up_bytes_per_s)} uploads and {len(down_bytes_per_s)} downloads")
    if not down_bytes_per_s:
        return 0.0
    if not (source_bytes_per_s > 0 and min(down_bytes_per_s) > 0 and min(up_bytes_per_s) >= 0):
        raise ValueError("rates must be positive")
    return max(
        payload_bytes / source_bytes_per_s,
        payload_bytes / min(down_bytes_per_s),
        len(down_bytes_per_s) * payload_bytes / (source_bytes_per_s + sum(up_bytes_per_s)),
    )


def star_s(payload_bytes: float, *, source_bytes_per_s: float, num_peers: int) -> float:
    """Return how long the source alone takes to send everybody a copy."""
    return num_peers * payload_bytes / source_bytes_per_s
