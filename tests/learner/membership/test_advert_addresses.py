"""Which addresses of adverts the learner hands on."""

import pytest

from learner.membership.advert_addresses import AdvertFilter, looked_up
from protocols.advert import NodeAdvert
from protocols.ids import PeerId, RunId

PUBLIC = "/ip4/93.184.216.34/tcp/4150"
PRIVATE = "/ip4/192.168.1.5/tcp/4150"
LOOPBACK = "/ip4/127.0.0.1/tcp/4150"


def advert(*addresses: str) -> NodeAdvert:
    return NodeAdvert(
        run_id=RunId("run"),
        peer_id=PeerId("peer"),
        role="node",
        seq=1,
        addresses=addresses,
        name="name",
        engine="none",
        device="none",
        usd_per_hour=0.0,
        software="test",
    )


@pytest.mark.parametrize(
    ("run_at", "kept"),
    [
        (PUBLIC, (PUBLIC,)),
        (PRIVATE, (PUBLIC, PRIVATE)),
        (LOOPBACK, (PUBLIC, LOOPBACK)),
    ],
)
def test_addresses_are_handed_on_of_networks_in_which_the_learner_is(
    run_at: str, kept: tuple[str, ...]
) -> None:
    filtered = AdvertFilter((f"{run_at}/p2p/learner",)).filtered(advert(PUBLIC, PRIVATE, LOOPBACK))

    assert filtered.addresses == kept


async def test_a_name_counts_as_the_network_that_it_leads_to() -> None:
    assert "/ip4/127.0.0.1/tcp/4150" in await looked_up(("/dns4/localhost/tcp/4150/p2p/learner",))


async def test_a_name_that_is_not_known_now_stays_as_it_is() -> None:
    unknown = "/dns4/no-such-name.invalid/tcp/4150"

    assert await looked_up((unknown, PUBLIC)) == (unknown, PUBLIC)
