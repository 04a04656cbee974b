"""The backend of the kernel: a bridge, a cable to each host, a token bucket at each end."""

from collections.abc import Sequence

from benchmarks.wan.links import MTU_BYTES, Link, token_bucket
from benchmarks.wan.tools import WanError, run


class KernelWires:
    """Joins namespaces by a bridge; exact and almost free, but without delay."""

    def __init__(self, prefix: str, namespaces: Sequence[str], device: str) -> None:
        self._prefix = prefix
        self._namespaces = namespaces
        self._device = device

    def lay(self, links: Sequence[Link]) -> None:
        """Make the device of each host.

        Raises:
            WanError: the kernel does not allow it.
        """
        bridge = f"{self._prefix}br"
        run(["ip", "link", "add", bridge, "type", "bridge"])
        run(["ip", "link", "set", bridge, "up"])
        for host, (namespace, link) in enumerate(zip(self._namespaces, links, strict=True)):
            port = self._port(host)
            run(
                [
                    *("ip", "link", "add", port, "mtu", str(MTU_BYTES), "type", "veth", "peer"),
                    *("name", self._device, "mtu", str(MTU_BYTES), "netns", namespace),
                ]
            )
            run(["ip", "link", "set", port, "master", bridge, "up"])
            self._shape(host, link, "add")

    def change(self, host: int, link: Link) -> None:
        """Give a host's link other rates while traffic flows."""
        if link.delay_s or link.loss or not link.accepts_inbound:
            raise WanError("this link cannot get delay, loss or NAT; open it with backend TAP")
        self._shape(host, link, "change")

    def close(self) -> None:
        """Do nothing: cables go with their namespaces, the bridge with its name's prefix."""

    def _shape(self, host: int, link: Link, verb: str) -> None:
        inside = ["tc", "-n", self._namespaces[host], "qdisc", verb, "dev", self._device, "root"]
        run([*inside, *token_bucket(link.up_mbit_per_s)])
        outside = ["tc", "qdisc", verb, "dev", self._port(host), "root"]
        run([*outside, *token_bucket(link.down_mbit_per_s)])

    def _port(self, host: int) -> str:
        return f"{self._prefix}p{host}"
