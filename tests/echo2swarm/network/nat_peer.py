"""A participant in a namespace: ``python -m tests.echo2swarm.network.nat_peer NUMBER [HOST]``.

Number 1 is the go-between; the others connect to it at HOST, then do what they read, line by line:
``connect NUMBER SECONDS`` answers ``connected`` or why not, ``echo NUMBER`` answers ``echoed``,
``leave NUMBER`` disconnects. Ends with its input.
"""

import sys

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.rpc import call, serve_calls
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from protocols.ids import PeerId

ECHO = "/test/echo/1.0.0"
DATA = bytes(100_000)


def identity_of(number: int) -> Identity:
    return Identity.of(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


async def main(number: int, hosts: list[str]) -> None:
    is_first = number == 1
    async with open_network(
        identity_of(number),
        ["/ip4/0.0.0.0/tcp/4150"],
        is_go_between=is_first,
        go_betweens=() if is_first else [identity_of(1).peer],
    ) as network:

        async def echo(_peer: PeerId, request: bytes) -> bytes:
            return request

        serve_calls(
            network,
            ECHO,
            echo,
            max_request_bytes=len(DATA),
            max_reply_bytes=len(DATA),
            timeout_s=60,
        )
        for host in hosts:
            await reach(network, host)
        say("ready")
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            try:
                say(await obey(network, *line.split()))
            except NetworkError as exc:
                say(f"error {exc}")


async def reach(network: Network, host: str) -> None:
    """Connect to the go-between, which may be slower to start."""
    info = PeerInfo(peer=identity_of(1).peer, addresses=(f"/ip4/{host}/tcp/4150",))
    while True:
        try:
            await network.connect(info)
        except NetworkError:
            await trio.sleep(0.2)
        else:
            return


async def obey(network: Network, command: str, number: str, *rest: str) -> str:
    peer = identity_of(int(number)).peer
    match command:
        case "connect":
            info = PeerInfo(peer=peer, addresses=())
            await network.connect(info, timeout_s=float(rest[0]))
            return "connected"
        case "echo":
            reply = await call(network, peer, ECHO, DATA, max_reply_bytes=len(DATA), timeout_s=60)
            return "echoed" if reply == DATA else "garbled"
        case "leave":
            await network.disconnect(peer)
            return "left"
        case _:
            raise ValueError(command)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(main, int(sys.argv[1]), sys.argv[2:])
