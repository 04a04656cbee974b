import pytest

from tests.contracts.network_worlds import (
    BulkWorld,
    FallbackWorld,
    Libp2pWorld,
    MemoryWorld,
    World,
)

WORLDS: dict[str, type[World]] = {
    "memory": MemoryWorld,
    "libp2p": Libp2pWorld,
    "bulk": BulkWorld,
    "bulk over libp2p": FallbackWorld,
}


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return WORLDS[request.param]()
