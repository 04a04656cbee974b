import subprocess
import sys
from pathlib import Path

import pytest

from echo2swarm.system.errors import StoreError
from echo2swarm.system.identity import hold_identity, load_or_create
from protocols.ids import public_key_of


def test_a_new_identity_is_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "identity"

    first = load_or_create(path)
    again = load_or_create(path)

    assert again.peer == first.peer
    public_key_of(first.peer).verify(again.key.sign(b"x"), b"x")


def test_only_the_owner_can_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state" / "identity"

    load_or_create(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["identity"]


def test_the_key_does_not_show_in_logs(tmp_path: Path) -> None:
    identity = load_or_create(tmp_path / "identity")

    assert "key" not in repr(identity)
    assert identity.peer in repr(identity)


@pytest.mark.parametrize("cut", [0, 1, 20])
def test_a_short_file_is_refused_and_left_alone(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "identity"
    load_or_create(path)
    data = path.read_bytes()[:cut]
    path.write_bytes(data)

    with pytest.raises(StoreError, match=rf"{path} is damaged \({cut} bytes\).*backup.*delete"):
        load_or_create(path)

    assert path.read_bytes() == data


@pytest.mark.parametrize("damage", [b"x", b"\n"])
def test_a_file_of_another_kind_or_length_is_refused(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "identity"
    load_or_create(path)
    whole = path.read_bytes()
    path.write_bytes(damage + whole[1:] if damage == b"x" else whole + damage)

    with pytest.raises(StoreError, match="damaged"):
        load_or_create(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_refused_with_the_remedy(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "identity"
    load_or_create(path)
    path.chmod(mode)

    with pytest.raises(StoreError, match=rf"mode 0{mode:o}.*chmod 600"):
        load_or_create(path)


def test_a_link_a_folder_and_a_file_in_the_way_are_refused(tmp_path: Path) -> None:
    load_or_create(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "folder").mkdir()

    for path in (tmp_path / "link", tmp_path / "folder", tmp_path / "real" / "identity"):
        with pytest.raises(StoreError, match=str(path)):
            load_or_create(path)


def test_one_process_at_a_time_holds_an_identity(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    other = (
        "import sys, pathlib\n"
        "from echo2swarm.system.errors import StoreError\n"
        "from echo2swarm.system.identity import hold_identity\n"
        "try:\n"
        "    with hold_identity(pathlib.Path(sys.argv[1])) as identity:\n"
        "        print(identity.peer)\n"
        "except StoreError as exc:\n"
        "    print(exc)\n"
    )

    def try_in_another_process() -> str:
        return subprocess.run(
            [sys.executable, "-c", other, str(path)], capture_output=True, text=True, check=True
        ).stdout.strip()

    with hold_identity(path) as identity:
        said = try_in_another_process()
    assert said.startswith(f"identity {path} is in use by another process on this machine")

    assert try_in_another_process() == identity.peer
