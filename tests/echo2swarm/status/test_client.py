from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2swarm.network.base import PeerInfo
from echo2swarm.network.rpc import Answer, serve_calls
from echo2swarm.status.client import StatusClient, read_status
from echo2swarm.status.health import is_healthy
from echo2swarm.system.errors import NetworkError, StoreError, UsageError
from protocols import status as status_protocol
from protocols.codec import decode, encode
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, peer_id_of
from protocols.status import StatusRequest
from protocols.ticket import Ticket
from tests.echo2swarm.sample_status import STATUS, status_with
from tests.fakes.network.memory import MemoryHub

LEARNER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\x01")
NODE_KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\x02")
ASKER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(31) + b"\x03")
NOWHERE = "/ip4/10.99.99.99/tcp/1"


def ticket_at(*addresses: str) -> Ticket:
    return Ticket(
        run_id=STATUS.run_id,
        learner_key=LEARNER_KEY.public_key().public_bytes_raw(),
        addresses=addresses,
        expires_unix_s=2_000_000_000,
    )


async def answer_with_sample(_peer: PeerId, request: bytes) -> bytes:
    asked = decode(request, StatusRequest, max_bytes=status_protocol.MAX_REQUEST_BYTES)
    assert asked.run_id == STATUS.run_id
    return encode(STATUS, max_bytes=status_protocol.MAX_REPLY_BYTES)


@asynccontextmanager
async def learner(hub: MemoryHub, answer: Answer = answer_with_sample) -> AsyncIterator[str]:
    async with hub.network(LEARNER_KEY) as network:
        serve_calls(
            network,
            status_protocol.PROTOCOL_ID,
            answer,
            max_request_bytes=status_protocol.MAX_REQUEST_BYTES,
            max_reply_bytes=status_protocol.MAX_REPLY_BYTES,
            timeout_s=100,
        )
        yield network.addresses()[0]


@asynccontextmanager
async def client(hub: MemoryHub, ticket: Ticket) -> AsyncIterator[StatusClient]:
    async with hub.network(ASKER_KEY) as network:
        yield StatusClient(network, ticket)


async def test_a_learner_at_the_tickets_address_answers(autojump_clock: trio.abc.Clock) -> None:
    hub = MemoryHub(1)
    async with learner(hub) as address, client(hub, ticket_at(address)) as asker:
        assert await asker.ask(timeout_s=30) == STATUS


async def test_a_learner_is_found_through_another_node(autojump_clock: trio.abc.Clock) -> None:
    hub = MemoryHub(1)
    async with learner(hub) as address, hub.network(NODE_KEY) as node:
        where = address.partition("/p2p/")[0]
        await node.connect(PeerInfo(peer=peer_id_of(LEARNER_KEY.public_key()), addresses=(where,)))
        moved = f"{NOWHERE}/p2p/{peer_id_of(LEARNER_KEY.public_key())}"

        async with client(hub, ticket_at(moved, node.addresses()[0])) as asker:
            assert await asker.ask(timeout_s=30) == STATUS


async def test_an_absent_learner_is_named_in_the_error(autojump_clock: trio.abc.Clock) -> None:
    absent = peer_id_of(LEARNER_KEY.public_key())

    async with client(MemoryHub(1), ticket_at(f"{NOWHERE}/p2p/{absent}")) as asker:
        with pytest.raises(NetworkError, match=r"can't reach the learner of run 'demo-7f3a'"):
            await asker.ask(timeout_s=30)


async def test_a_silent_learner_costs_no_more_than_the_deadline(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def say_nothing(_peer: PeerId, _request: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    hub = MemoryHub(1)
    async with learner(hub, say_nothing) as address, client(hub, ticket_at(address)) as asker:
        started_s = trio.current_time()
        with pytest.raises(NetworkError, match="did not answer"):
            await asker.ask(timeout_s=30)
        assert trio.current_time() - started_s < 35


async def test_the_status_of_another_run_is_refused(autojump_clock: trio.abc.Clock) -> None:
    async def answer_for_another(_peer: PeerId, _request: bytes) -> bytes:
        other = status_with(run_id="other")
        return encode(other, max_bytes=status_protocol.MAX_REPLY_BYTES)

    hub = MemoryHub(1)
    async with (
        learner(hub, answer_for_another) as address,
        client(hub, ticket_at(address)) as asker,
    ):
        with pytest.raises(MalformedMessageError, match="other"):
            await asker.ask(timeout_s=30)


def test_a_run_directory_holds_the_same_status(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(msgspec.json.encode(STATUS))

    assert read_status(tmp_path) == STATUS


def test_a_missing_run_directory_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run directory"):
        read_status(tmp_path / "none")


def test_a_file_instead_of_a_run_directory_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="not a directory"):
        read_status(tmp_path / "file")


def test_a_run_directory_without_a_status_says_when_there_will_be_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no status yet"):
        read_status(tmp_path)


def test_a_damaged_status_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"run_id": 3}')

    with pytest.raises(StoreError, match=r"status\.json is not the status of a run"):
        read_status(tmp_path)


@pytest.mark.parametrize(
    ("phase", "age_s", "healthy"),
    [
        ("training", 1.0, True),
        ("training", 60.0, False),
        ("finished", 1e6, True),
        ("failed", 0.0, False),
        ("stopped", 0.0, False),
    ],
)
def test_a_run_is_well_while_it_goes_on_and_when_it_has_finished(
    phase: str, age_s: float, healthy: bool
) -> None:
    assert is_healthy(status_with(phase=phase), age_s=age_s) is healthy
