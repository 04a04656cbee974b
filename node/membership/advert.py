"""What this node says of itself in the DHT and to the learner."""

import msgspec

from echo2swarm.network.base import Network
from echo2swarm.system.identity import Identity
from node.engine.messages import Description
from protocols import advert
from protocols.advert import NodeAdvert
from protocols.ids import RunId
from protocols.ticket import MAX_ADDRESSES

_MAX_TEXT_CHARS = 120


class SelfAdvert:
    """Signs anew when something has changed, with a higher number.

    Args:
        identity: who signs.
        network: knows where we can be reached.
        run: which run.
        name: what the contributor calls this machine.
        engine: the engine's kind.
        usd_per_hour: the price.
        software: this program and its version.
        seq: of the first advert; it must be higher than any that an earlier process used.
    """

    def __init__(
        self,
        identity: Identity,
        network: Network,
        *,
        run: RunId,
        name: str,
        engine: str,
        usd_per_hour: float,
        software: str,
        seq: int,
    ) -> None:
        self._identity = identity
        self._network = network
        self._said = NodeAdvert(
            run_id=run,
            peer_id=identity.peer,
            role="node",
            seq=seq,
            addresses=network.addresses()[:MAX_ADDRESSES],
            name=name[:_MAX_TEXT_CHARS],
            engine=engine,
            device="",
            usd_per_hour=usd_per_hour,
            software=software[:_MAX_TEXT_CHARS],
        )
        self._sealed = advert.sign_advert(self._said, identity.key)

    def describe_engine(self, description: Description) -> None:
        """Say what the engine has told of itself."""
        engine = f"{description.engine} {description.version}".rstrip()
        self._say(
            msgspec.structs.replace(
                self._said,
                engine=engine[:_MAX_TEXT_CHARS],
                device=description.device[:_MAX_TEXT_CHARS],
            )
        )

    def sealed(self) -> bytes:
        """Return the signed advert."""
        addresses = self._network.addresses()[:MAX_ADDRESSES]
        self._say(msgspec.structs.replace(self._said, addresses=addresses))
        return self._sealed

    def _say(self, said: NodeAdvert) -> None:
        if said != self._said:
            self._said = msgspec.structs.replace(said, seq=self._said.seq + 1)
            self._sealed = advert.sign_advert(self._said, self._identity.key)
