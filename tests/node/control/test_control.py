"""The control socket: nobody else's, never in the way, and dead sockets do no harm."""

import os
import shlex
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec
import pytest
import trio
from rich.console import Console

from echo2swarm.system.errors import StoreError, UsageError
from node.control import client as client_module
from node.control import commands
from node.control.client import NoNodeError, OtherVersionError, SilentNodeError, open_control
from node.control.commands import Found, look
from node.control.messages import (
    MAX_REQUEST_BYTES,
    CommandDone,
    ContributionLine,
    DrainCommand,
    EngineLine,
    GetStatus,
    LearnerLine,
    LinkLine,
    NodePhase,
    NodeSnapshot,
    OwnerLine,
    PauseCommand,
    Reply,
    Request,
    ResumeCommand,
    SetCommand,
    VersionsLine,
)
from node.control.paths import make_private_folder, socket_path
from node.control.registry import registered, registered_in
from node.control.server import MAX_CLIENTS, serve_control
from node.control.view import node_facts, node_view
from protocols.codec import Message
from protocols.framing import frame
from protocols.heartbeat import NodeState


def snapshot(name: str = "attic", state_dir: Path = Path("/s")) -> NodeSnapshot:
    return NodeSnapshot(
        run_id="run-1",
        peer_id="12D3KooWattic",
        name=name,
        state_dir=str(state_dir),
        pid=7,
        software="echo2swarm 1",
        uptime_s=60.0,
        phase=NodePhase.PAUSED,
        doing="paused by its owner: gaming",
        state=NodeState.PAUSED,
        num_rollouts_in_hand=0,
        versions=VersionsLine(published=7, held=7, applied=5, learner_step=7, num_behind=2),
        download=None,
        learner=LearnerLine(
            peer_id="12D3KooWlearner",
            is_connected=True,
            is_answering=False,
            silent_s=12.0,
            error="no answer\x1b[31m",
            directive="active",
            why="",
            warning="",
        ),
        contribution=ContributionLine(
            num_accepted=40,
            num_overtaken=1,
            refused={"stale": 3},
            num_trained=32,
            num_tokens=4000,
            active_s=3600.0,
            usd_per_hour=0.5,
            usd=0.5,
        ),
        link=LinkLine(
            up_bytes_per_s=1e6,
            down_bytes_per_s=0.0,
            sent_bytes=10,
            received_bytes=20,
            up_cap_bytes_per_s=None,
            down_cap_bytes_per_s=1e6,
            num_peers=3,
        ),
        engine=EngineLine(
            kind="sleep",
            device="none",
            tokens_per_s=12.0,
            num_tokens=5000,
            num_sampling=0,
            num_deaths=1,
            last_death="killed",
            pids=(8, 9),
        ),
        owner=OwnerLine(
            paused="paused by its owner: gaming",
            until_unix_s=1.8e9,
            settings={"hours": "22:00-07:00", "upload-mbit": "none"},
            disk_used_bytes=10**9,
            disk_quota_bytes=2 * 10**9,
        ),
    )


class FakeNode:
    def __init__(self, state_dir: Path, name: str = "attic") -> None:
        self.state_dir = state_dir
        self.name = name
        self.asked: list[Request] = []
        self.snapshot: Message = snapshot(name, state_dir)

    def answer(self, request: Request) -> Reply:
        self.asked.append(request)
        if isinstance(request, SetCommand):
            raise UsageError("no setting like that")
        if isinstance(request, GetStatus):
            return cast("Reply", self.snapshot)
        return CommandDone("done it")


@asynccontextmanager
async def serving(state_dir: Path, name: str = "attic") -> AsyncIterator[FakeNode]:
    node = FakeNode(state_dir, name)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, state_dir, node.answer)
            yield node
            nursery.cancel_scope.cancel()


async def test_a_node_answers_and_does_what_it_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as node, open_control(tmp_path) as client:
        seen = await client.status()
        assert seen == snapshot("attic", tmp_path)
        for request in (PauseCommand(60.0, "gaming"), ResumeCommand(), DrainCommand()):
            assert await client.ask(request) == CommandDone("done it")
        assert node.asked == [
            GetStatus(),
            PauseCommand(60.0, "gaming"),
            ResumeCommand(),
            DrainCommand(),
        ]
        with pytest.raises(UsageError, match="no setting like that"):
            await client.ask(SetCommand({"x": "1"}))
        assert await client.status() == seen


async def test_only_the_owner_may_enter_even_if_the_state_folder_is_open(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)  # noqa: S103
    os.mkdir(tmp_path / "control")
    os.chmod(tmp_path / "control", 0o777)  # noqa: S103

    async with serving(tmp_path):
        path = socket_path(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "control").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StoreError, match="not a folder of this user"):
        make_private_folder(tmp_path)


async def test_a_socket_left_by_a_killed_node_does_no_harm(tmp_path: Path) -> None:
    make_private_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path(tmp_path)))
    assert socket_path(tmp_path).exists()

    with pytest.raises(NoNodeError, match="no node runs"):
        async with open_control(tmp_path):
            pass
    async with serving(tmp_path), open_control(tmp_path) as client:
        await client.status()


async def test_no_node_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NoNodeError, match="no node runs in"):
        async with open_control(tmp_path / "none"):
            pass


async def test_a_state_folder_with_a_very_long_name_works(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120)
    async with serving(folder), open_control(folder) as client:
        assert (await client.status()).state_dir == str(folder)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (MAX_REQUEST_BYTES + 1).to_bytes(4, "big"),
        frame(b"garbage"),
        frame(msgspec.msgpack.encode({"type": "reboot"})),
        frame(b"")[:2],
    ],
    ids=["huge", "too large", "garbage", "unknown", "cut off"],
)
async def test_garbage_does_not_reach_the_node_nor_stop_the_next_client(
    tmp_path: Path, data: bytes
) -> None:
    async with serving(tmp_path) as node:
        stream = await trio.open_unix_socket(socket_path(tmp_path))
        await stream.send_all(data)
        await stream.send_eof()
        while await stream.receive_some(1024):
            pass
        await stream.aclose()
        assert node.asked == []
        async with open_control(tmp_path) as client:
            await client.status()


async def test_clients_that_say_nothing_keep_nobody_out_for_ever(tmp_path: Path) -> None:
    async with serving(tmp_path):
        silent = [await trio.open_unix_socket(socket_path(tmp_path)) for _ in range(MAX_CLIENTS)]
        await trio.sleep(0.05)
        with pytest.raises(SilentNodeError, match="at most 8 commands at once"):
            async with open_control(tmp_path) as client:
                await client.status()
        await silent[0].aclose()
        while not await is_answered(tmp_path):  # noqa: ASYNC110
            await trio.sleep(0.05)
        for stream in silent:
            await stream.aclose()


async def is_answered(state_dir: Path) -> bool:
    try:
        async with open_control(state_dir) as client:
            await client.status()
    except SilentNodeError:
        return False
    return True


async def test_a_node_that_accepts_nobody_is_not_taken_for_one_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_S", 0.3)
    registry, state_dir = tmp_path / "nodes", tmp_path / "one"
    make_private_folder(state_dir)
    with registered(registry, state_dir), socket.socket(socket.AF_UNIX) as held_up:
        held_up.bind(str(socket_path(state_dir)))
        held_up.listen(0)
        with socket.socket(socket.AF_UNIX) as first, trio.fail_after(60):
            first.connect(str(socket_path(state_dir)))

            with pytest.raises(SilentNodeError, match="does not answer"):
                async with open_control(state_dir):
                    pass
            found = await look(None, registry, tmp_path / "default")

            assert list(found.silent) == [state_dir]
            assert registered_in(registry) == [state_dir]


async def test_a_command_waits_for_its_turn_while_the_node_is_held_up(tmp_path: Path) -> None:
    make_private_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as held_up, trio.fail_after(60):
        held_up.bind(str(socket_path(tmp_path)))
        held_up.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(socket_path(tmp_path)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_accept_later, held_up)
                async with open_control(tmp_path):
                    pass


async def _accept_later(held_up: socket.socket) -> None:
    await trio.sleep(0.3)
    held_up.accept()[0].close()


async def test_an_order_that_was_not_answered_may_still_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_S", 0.1)
    make_private_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as held_up, trio.fail_after(60):
        held_up.bind(str(socket_path(tmp_path)))
        held_up.listen(2)
        async with open_control(tmp_path) as client:
            with pytest.raises(SilentNodeError, match="it may still do it"):
                await client.ask(DrainCommand())
        async with open_control(tmp_path) as client:
            with pytest.raises(SilentNodeError) as caught:
                await client.status()
    assert "may still" not in str(caught.value)


async def test_a_node_that_ends_before_it_answers_has_ended(tmp_path: Path) -> None:
    make_private_folder(tmp_path)
    with socket.socket(socket.AF_UNIX) as dying, trio.fail_after(60):
        dying.bind(str(socket_path(tmp_path)))
        dying.listen(2)
        async with open_control(tmp_path) as client:
            with dying.accept()[0] as half:
                half.sendall(b"\0\0")
            dying.close()
            with pytest.raises(NoNodeError, match="has ended"):
                await client.status()


async def test_all_nodes_of_the_machine_are_found_and_dead_ones_forgotten(tmp_path: Path) -> None:
    registry, default = tmp_path / "nodes", tmp_path / "default"
    one, two, dead = tmp_path / "one", tmp_path / "two", tmp_path / "dead"
    with registered(registry, one), registered(registry, two):
        entries = sorted(registry.iterdir())
        (registry / "0000").write_bytes(os.fsencode(dead))
        async with serving(one, "one"), serving(two, "two"):
            found = await look(None, registry, default)
            assert [node.name for node in found.nodes] == ["one", "two"]
            assert [node.name for node in (await look(two, registry, default)).nodes] == ["two"]
    assert len(entries) == 2
    assert await look(None, registry, default) == Found([])
    assert registered_in(registry) in ([], [dead])


class LaterSnapshot(Message, frozen=True, tag="status"):
    """What a node of a later version might answer."""

    run_id: str
    mood: str


async def test_a_node_of_another_version_hides_no_other_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, one, other = tmp_path / "nodes", tmp_path / "one", tmp_path / "it's new"
    monkeypatch.setattr(commands, "default_registry", lambda: registry)
    monkeypatch.setattr(commands, "default_state_dir", lambda: one)
    with registered(registry, one), registered(registry, other):
        async with serving(one, "one"), serving(other) as later:
            later.snapshot = LaterSnapshot("run-1", "good")
            found = await look(None, registry, one)
            assert [node.name for node in found.nodes] == ["one"]
            assert list(found.silent) == [other]
            assert f"the node in {other} is of another version" in found.silent[other]
            with pytest.raises(OtherVersionError, match="restart it"):
                await look(other, registry, one)
            # Nobody is paused who was not meant.
            with pytest.raises(UsageError, match="2 nodes run here") as refused:
                await commands._order(None, PauseCommand(60.0, ""))
            assert shlex.quote(str(other)) in str(refused.value)


def test_why_the_newest_version_is_not_here_is_told_with_it() -> None:
    seen = snapshot()
    versions = msgspec.structs.replace(seen.versions, trouble="0 B left; free some")
    facts = dict(node_facts(msgspec.structs.replace(seen, versions=versions)))

    said = str(facts["version"])
    assert said == "5, 2 steps behind the newest; it can't be fetched: 0 B left; free some"


def test_a_learner_that_was_never_reached_is_told_with_the_reason_once() -> None:
    seen = snapshot()
    learner = msgspec.structs.replace(seen.learner, silent_s=None, error="connection refused")
    for doing, said in (("idle", "yet: connection refused"), ("x: connection refused", "yet")):
        facts = dict(node_facts(msgspec.structs.replace(seen, learner=learner, doing=doing)))
        assert str(facts["learner"]).endswith(f"has not answered {said}")


def test_the_view_says_everything_and_nobody_steers_the_terminal() -> None:
    names = [name for name, _ in node_facts(snapshot())]
    assert {"now", "until", "learner", "version", "done", "refused", "worth", "engine"} <= {*names}

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(node_view(snapshot(), width=100))
    text = console.export_text()
    console.file.close()

    for words in (
        "gaming",
        "2 steps behind",
        "40 rollouts accepted",
        "32 trained on",
        "3 stale",
        "$0.50",
        "12.0 tokens/s",
        "died 1 times",
        "of 2.00 GB",
        "hours 22:00-07:00",
    ):
        assert words in text, words
    assert "\x1b" not in text
