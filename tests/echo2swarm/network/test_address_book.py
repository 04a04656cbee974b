import contextlib
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network import address_book
from echo2swarm.network.address_book import MAX_PEERS, AddressBook
from echo2swarm.network.base import PeerInfo
from echo2swarm.system.errors import StoreError
from protocols.errors import MalformedMessageError
from protocols.ids import PeerId, RunId, peer_id_of

RUN = RunId("run-1")


def peer(number: int) -> PeerId:
    seed = number.to_bytes(32, "big")
    return peer_id_of(Ed25519PrivateKey.from_private_bytes(seed).public_key())


def seen(number: int, *addresses: str) -> PeerInfo:
    return PeerInfo(peer=peer(number), addresses=addresses or (f"/ip4/10.0.0.{number}/tcp/1",))


def test_the_peer_seen_last_comes_first() -> None:
    book = AddressBook(RUN)
    for number, now_s in ((1, 10.0), (2, 30.0), (3, 20.0)):
        book.saw(seen(number), now_unix_s=now_s)

    assert [info.peer for info in book.peers()] == [peer(2), peer(3), peer(1)]


def test_the_newest_address_of_a_peer_comes_first_and_the_old_ones_stay() -> None:
    book = AddressBook(RUN)
    book.saw(seen(1, "/a", "/b"), now_unix_s=1)
    book.saw(seen(1, "/c", "/b"), now_unix_s=2)

    assert book.peers() == (seen(1, "/c", "/b", "/a"),)


def test_a_full_book_forgets_who_was_not_seen_for_longest() -> None:
    book = AddressBook(RUN)
    for number in range(MAX_PEERS + 3):
        book.saw(seen(number, "/a"), now_unix_s=float(number))

    assert [info.peer for info in book.peers()] == [
        peer(number) for number in range(MAX_PEERS + 2, 2, -1)
    ]


def test_a_peer_without_address_is_not_noted() -> None:
    book = AddressBook(RUN)
    book.saw(PeerInfo(peer=peer(1), addresses=()), now_unix_s=1)

    assert book.peers() == ()


def test_a_book_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "peers.json"
    book = AddressBook(RUN)
    book.saw(seen(1), now_unix_s=5)
    book.saw(seen(2), now_unix_s=6)

    address_book.save(book.encode(), path)

    assert address_book.load_address_book(path, RUN).peers() == book.peers()
    assert [each.name for each in path.parent.iterdir()] == ["peers.json"]


@given(st.binary(max_size=200))
def test_nothing_in_a_file_does_worse_than_be_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        AddressBook.decode(data, RUN)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"run_id":"other","peers":[]}',
        b'{"run_id":"run-1","peers":[{"peer":"nobody","addresses":["/a"],"last_seen_unix_s":1}]}',
        b" " * (address_book.MAX_FILE_BYTES + 1),
    ],
    ids=["empty", "cut", "wrong type", "other run", "bad peer", "too long"],
)
def test_a_file_that_can_not_be_used_counts_as_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(content)

    assert address_book.load_address_book(path, RUN).peers() == ()


def test_no_file_is_an_empty_book(tmp_path: Path) -> None:
    assert address_book.load_address_book(tmp_path / "none.json", RUN).peers() == ()


def test_a_book_that_can_not_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreError, match=r"can't write address book .*peers\.json"):
        address_book.save(AddressBook(RUN).encode(), tmp_path / "file" / "peers.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    path.mkdir()  # A folder can't be replaced by a file.

    with pytest.raises(StoreError):
        address_book.save(b"{}", path)

    assert stat.S_ISDIR(path.stat().st_mode)
    assert [each.name for each in tmp_path.iterdir()] == ["peers.json"]
