import pytest

from tests.contracts.network_worlds import Libp2pWorld, MemoryWorld, World


@pytest.fixture(params=["memory", "libp2p"])
def world(request: pytest.FixtureRequest) -> World:
    return MemoryWorld() if request.param == "memory" else Libp2pWorld()
