"""Which addresses of a node's advert are handed on to others.

Nodes connect to the neighbours that the learner names. So what a node says of itself passes the
same rules here that each node applies before it dials: an advert can't have the learner send
other people's machines to ports of services, to the inside of networks, or after names.
"""

from collections.abc import Iterable

import msgspec
import trio

from echo2swarm.network.admission.dial_policy import objection, reach_of
from echo2swarm.network.own_addresses import look_up
from echo2swarm.system.errors import NetworkError, UsageError
from protocols.advert import NodeAdvert


class AdvertFilter:
    """Drops the addresses that nodes are not to dial.

    Args:
        run_at: the learner's own addresses; they say in which kinds of network the run is.
    """

    def __init__(self, run_at: Iterable[str]) -> None:
        self._reach = reach_of(run_at)

    def filtered(self, advert: NodeAdvert) -> NodeAdvert:
        """Return ``advert`` with the addresses that others may be told."""
        kept = tuple(each for each in advert.addresses if not objection(each, self._reach))
        return (
            advert if kept == advert.addresses else msgspec.structs.replace(advert, addresses=kept)
        )


async def looked_up(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return ``addresses`` with names replaced by what they lead to, as far as that is known now.

    A name says nothing of the network that the run is in; the nodes find out when they connect.
    """
    found: list[str] = []
    for address in addresses:
        where = address.partition("/p2p/")[0]
        try:
            found += await trio.to_thread.run_sync(look_up, (where,), abandon_on_cancel=True)
        except (NetworkError, UsageError):
            found.append(where)
    return tuple(found)
