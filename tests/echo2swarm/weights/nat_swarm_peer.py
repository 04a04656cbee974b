"""Learner or node of a swarm in a namespace: ``python -m ...nat_swarm_peer NUMBER FOLDER [HOST]``.

Number 0 is the learner; the others connect to it at HOST. Each does what it reads, by line:

- ``publish VERSION``: the learner publishes and announces a version;
- ``hold VERSION``: a node answers when it has it;
- ``connect NUMBER HOST``, or ``meet NUMBER``: a node connects to another;
- ``sent``: answers how many bytes of weights it has sent.
"""

import random
import sys
from pathlib import Path

import structlog
import trio

from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.system.errors import NetworkError
from echo2swarm.system.identity import Identity
from echo2swarm.weights.announce import ManifestAnnouncer
from echo2swarm.weights.publish import publish_version
from echo2swarm.weights.store.library import VersionLibrary, open_library
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.rate_limit import UploadBudget
from echo2swarm.weights.transfer.serve import ChunkServer
from echo2swarm.weights.transfer.traffic import Traffic
from protocols.ids import PeerId, PolicyVersion
from protocols.manifest import MIN_CHUNK_BYTES
from tests.echo2swarm.weights.made import LEARNER_KEY, RULES, RUN, assets, snapshot
from tests.echo2swarm.weights.swarm import LEARNER, node_key

NUM_CHUNKS = 24
SIZE_BYTES = NUM_CHUNKS * MIN_CHUNK_BYTES
LEARNER_BYTES_PER_S = SIZE_BYTES / 4
"""Slow enough that nodes have time to pass on what they were dealt."""


class Participant:
    def __init__(self, network: Network, library: VersionLibrary, folder: Path) -> None:
        self._network = network
        self._library = library
        self._folder = folder
        self._traffic = Traffic()
        self._announcer = ManifestAnnouncer(network, RUN)

    async def run(self, hosts: list[str]) -> None:
        is_learner = self._network.peer == LEARNER
        ChunkServer(
            self._network,
            self._library.store,
            self._traffic,
            budget=UploadBudget(LEARNER_BYTES_PER_S) if is_learner else None,
            upload_rate_of=(lambda _peer: None) if is_learner else None,
        )
        for host in hosts:
            await self._connect(LEARNER, host)
        async with trio.open_nursery() as nursery:
            if is_learner:
                nursery.start_soon(self._announcer.run)
            else:
                sync = PolicySync(
                    self._network,
                    self._library,
                    learner=LEARNER,
                    holders=self._network.connected_peers,
                    rng=random.Random(0),
                    traffic=self._traffic,
                )
                await nursery.start(sync.run)
            say("ready")
            while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                say(await self._obey(*line.split()))
            nursery.cancel_scope.cancel()

    async def _obey(self, command: str, *rest: str) -> str:
        match command, *rest:
            case "publish", version:
                held = await publish_version(
                    self._library,
                    version=PolicyVersion(int(version)),
                    snapshot=snapshot(
                        self._folder / f"v{version}", seed=int(version), size=SIZE_BYTES
                    ),
                    assets=assets(self._folder / f"a{version}"),
                    rules=RULES,
                    key=LEARNER_KEY,
                )
                await self._announcer.announce(held.sealed)
                return "published"
            case "hold", version:
                while self._library.get(PolicyVersion(int(version))) is None:
                    newest = self._library.newest
                    await self._library.next_version(None if newest is None else newest.version)
                return "held"
            case "connect", number, host:
                return await self._connect(peer_of(number), host)
            case "meet", number:
                await self._network.connect(PeerInfo(peer=peer_of(number), addresses=()))
                return "met"
            case ("sent",):
                return str(self._traffic.sent_bytes)
            case _:
                raise ValueError(command)

    async def _connect(self, peer: PeerId, host: str) -> str:
        info = PeerInfo(peer=peer, addresses=(f"/ip4/{host}/tcp/4150",))
        while True:
            try:
                await self._network.connect(info)
            except NetworkError:
                await trio.sleep(0.2)  # It may be slower to start.
            else:
                return "connected"


def peer_of(number: str) -> PeerId:
    return Identity.of(node_key(int(number))).peer


def say(text: str) -> None:
    print(text, flush=True)


async def main(number: int, folder: Path, hosts: list[str]) -> None:
    identity = Identity.of(node_key(number) if number else LEARNER_KEY)
    async with (
        open_network(
            identity,
            ["/ip4/0.0.0.0/tcp/4150"],
            is_go_between=not number,
            go_betweens=[LEARNER] if number else (),
        ) as network,
        open_library(folder / "library", run=RUN, learner_key=LEARNER_KEY.public_key()) as library,
    ):
        await Participant(network, library, folder).run(hosts)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(main, int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
