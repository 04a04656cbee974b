"""What the emulated links are, and how the two backends are told; pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MTU_BYTES: Final = 1500
ETHERNET_HEADER_BYTES: Final = 14
IP_TCP_HEADER_BYTES: Final = 52
"""IPv4 20, TCP 20, its timestamps 12."""
GOODPUT_SHARE: Final = (MTU_BYTES - IP_TCP_HEADER_BYTES) / (MTU_BYTES + ETHERNET_HEADER_BYTES)
"""Of what a link carries, how much is the payload of full TCP segments: 1448 of 1514 bytes."""
QUEUE_S: Final = 0.1
"""So much traffic waits at each end of a link before it is dropped, as in a home router."""
BURST_S: Final = 0.004
MIN_BURST_BYTES: Final = 70_000
"""A bucket takes what TCP hands over at once, up to 64 KiB, as it is; cutting it up would cost
more processor time than all else that is emulated."""
MIN_SEGMENTS: Final = 8
"""So many segments TCP hands over at once, if it has them; by itself, on a slow link, two."""


class Backend(StrEnum):
    """What stands for the wires."""

    TC = "tc"
    """Bridge and token buckets of the kernel: exact, almost free, but without delay or loss."""
    TAP = "tap"
    """A switch of ours in user space: delay, loss, and hosts that cannot be dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins one host to the rest of the world."""

    up_mbit_per_s: float = 100.0
    """On the wire: Ethernet, IP and TCP headers included."""
    down_mbit_per_s: float = 100.0
    delay_s: float = 0.0
    """One way, between the host and the middle: two hosts are twice both delays apart."""
    loss: float = 0.0
    """The share of the frames that is lost, in each direction."""
    accepts_inbound: bool = True
    """Whether TCP connections to this host get through; behind NAT they do not."""

    def __post_init__(self) -> None:
        if not (self.up_mbit_per_s > 0 and self.down_mbit_per_s > 0):
            raise ValueError("a link's rates are above 0 Mbit/s")
        if not 0 <= self.delay_s <= 10:
            raise ValueError("a link's delay is 0 to 10 s")
        if not 0 <= self.loss < 1:
            raise ValueError("a link's loss is a share of 1, and below it")

    @property
    def up_bytes_per_s(self) -> float:
        """Payload that full TCP segments can carry away."""
        return self.up_mbit_per_s * 1e6 / 8 * GOODPUT_SHARE

    @property
    def down_bytes_per_s(self) -> float:
        """Payload that full TCP segments can bring."""
        return self.down_mbit_per_s * 1e6 / 8 * GOODPUT_SHARE


def backend_for(links: Iterable[Link]) -> Backend:
    """Return the cheapest backend that can emulate all of ``links``."""
    is_plain = all(not each.delay_s and not each.loss and each.accepts_inbound for each in links)
    return Backend.TC if is_plain else Backend.TAP


def token_bucket(mbit_per_s: float) -> list[str]:
    """Return what makes ``tc`` hold a device to a rate."""
    burst_bytes = max(MIN_BURST_BYTES, round(mbit_per_s * 1e6 / 8 * BURST_S))
    return [
        *("tbf", "rate", f"{round(mbit_per_s * 1e6)}bit"),
        *("burst", str(burst_bytes), "latency", f"{QUEUE_S * 1e3:g}ms"),
    ]


def switch_settings(link: Link) -> str:
    """Return a link as the switch reads it."""
    return (
        f"{link.up_mbit_per_s * 1e6:.0f} {link.down_mbit_per_s * 1e6:.0f} "
        f"{link.delay_s * 1e9:.0f} {link.loss:.6f} {int(link.accepts_inbound)}"
    )


def mac_of(host: int) -> str:
    """Return a host's hardware address; the switch finds the host in its last two bytes."""
    return f"02:57:00:00:{host >> 8:02x}:{host & 255:02x}"
