"""The attacks' own logic: from what is read to verdicts, where they come from, at what pace."""

import math
import pkgutil
import sys
import time
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from benchmarks.attacks import kinds
from benchmarks.attacks.bombs import BOMBS, Trapped
from benchmarks.attacks.bombs import marks_of as marks_of_trap
from benchmarks.attacks.lab import Readings, Sample
from benchmarks.attacks.newcomer import Visit
from benchmarks.attacks.registry import ATTACKS, Attack, attack_of
from benchmarks.attacks.report import Results, outcome_of
from benchmarks.attacks.scene import Order, Scene, Tally
from benchmarks.attacks.verdict import disk_growth, find, marks_of, rates
from benchmarks.attacks.victim import open_victim
from benchmarks.attacks.wire import Target, new_identity, open_wire
from echo2swarm.network.libp2p.network import open_network
from echo2swarm.network.rpc import serve_calls
from echo2swarm.system.errors import NetworkError
from protocols import ticket as ticket_protocol
from protocols.ids import PeerId
from protocols.ticket import Ticket

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
MAX_ALL_S = 20 * 60.0


async def nothing(_: Scene) -> None:
    await trio.sleep_forever()


ATTACK = Attack(name="test", what="nothing", run=nothing, min_tried=10)


def sample(
    at_s: float, *, memory_mb: float = 500.0, disk_mb: float = 0.0, stores_mb: float = 2.0
) -> Sample:
    return Sample(
        at_s=at_s,
        memory={"learner": round(memory_mb * 1e6)},
        cpu_s={"learner": 0.25 * at_s},
        machine_cpu_s=at_s,
        store_bytes=round(stores_mb * 1e6),
        other_bytes=round(disk_mb * 1e6),
    )


def a_visit(at_s: float, in_s: float = 0.1, status_s: float = 0.1) -> Visit:
    return Visit(at_s=at_s, in_s=in_s, status_s=status_s)


def calm() -> Readings:
    """Twelve seconds before, twenty-four under attack, three after: as if there were none."""
    return Readings(
        window_s=4.0,
        began_s=0.0,
        attack_s=(12.0, 36.0),
        ended_s=39.0,
        steps_s=[i / 4 for i in range(160)],
        samples=[sample(i / 2, disk_mb=i / 100) for i in range(78)],
        visits=[a_visit(3.0 * i) for i in range(13)],
        tally=Tally(num_tried=100, cpu_s=6.0),
        num_survivors=3,
        nodes_in_s=[0.1, 0.2],
    )


def missed(readings: Readings, attack: Attack = ATTACK) -> set[str]:
    found = find(attack, readings, share=1.0)
    return {mark.name for mark in marks_of(attack, found) if not mark.is_met}


def test_an_attack_that_changes_nothing_misses_no_mark() -> None:
    assert missed(calm()) == set()


def test_fewer_steps_than_nine_in_ten_are_too_few() -> None:
    slower = replace(calm(), steps_s=[*(i / 4 for i in range(48)), *(12 + i for i in range(30))])

    assert missed(slower) == {"steps kept"}


def test_a_run_that_did_not_train_before_shows_nothing() -> None:
    assert "steps kept" in missed(replace(calm(), steps_s=[]))


def test_memory_counts_from_what_was_held_right_before() -> None:
    grown = [sample(i / 2, memory_mb=500 + 150 * (i > 40), disk_mb=i / 100) for i in range(78)]

    assert missed(replace(calm(), samples=grown)) == {"memory grew by, MB"}


def test_what_is_written_beyond_what_is_usual_counts() -> None:
    written = [sample(i / 2, disk_mb=i / 100 + max(0, i - 24) / 10) for i in range(78)]

    assert missed(replace(calm(), samples=written)) == {"disk, MB/min"}


def test_lines_about_an_attack_do_not_hide_behind_steps_that_were_not_made() -> None:
    """A log grows as before, though nothing is trained that it would tell of."""
    stalled = replace(calm(), steps_s=[i / 4 for i in range(48)])

    assert missed(stalled) == {"steps kept", "disk, MB/min"}


def test_a_short_attack_is_not_held_to_what_a_minute_may_write() -> None:
    written = [sample(i / 2, disk_mb=i / 100 + max(0, i - 24) / 10) for i in range(78)]
    short = replace(calm(), samples=written, attack_s=(12.0, 22.0))

    assert missed(replace(short, visits=[a_visit(15.0), a_visit(30.0)])) == set()


def test_stores_that_fill_are_seen() -> None:
    filled = [sample(i / 2, disk_mb=i / 100, stores_mb=2 + 9 * (i > 60)) for i in range(78)]

    assert missed(replace(calm(), samples=filled)) == {"stores grew by, MB"}


@pytest.mark.parametrize(
    ("visits", "name"),
    [
        ([a_visit(20.0, in_s=6.0), a_visit(37.0)], "newcomer during, s"),
        ([a_visit(20.0), a_visit(37.0, in_s=math.inf)], "newcomer after, s"),
        ([a_visit(20.0, status_s=6.0), a_visit(37.0)], "status, s"),
        ([a_visit(20.0)], "newcomer after, s"),
        ([a_visit(37.0)], "newcomer during, s"),
    ],
)
def test_a_newcomer_who_waits_or_never_came_is_a_failure(visits: list[Visit], name: str) -> None:
    assert missed(replace(calm(), visits=visits)) == {name}


def test_a_node_that_cannot_be_reached_afterwards_is_a_failure() -> None:
    assert missed(replace(calm(), nodes_in_s=[0.1, math.inf])) == {"newcomer at a node, s"}


def test_a_victim_may_be_dialled_a_handful_of_times() -> None:
    aimed = replace(ATTACK, has_victim=True)

    assert missed(replace(calm(), num_dials=10), aimed) == set()
    assert missed(replace(calm(), num_dials=11), aimed) == {"dials of the victim"}


def test_an_attack_that_was_not_made_proves_nothing() -> None:
    assert missed(replace(calm(), tally=Tally(num_tried=9))) == {"deeds"}


def test_a_learner_or_node_that_died_is_a_failure() -> None:
    assert missed(replace(calm(), num_survivors=2)) == {"processes left"}


def test_a_step_counts_for_the_part_of_it_that_lies_in_a_window() -> None:
    assert rates([0.5 + i for i in range(9)], (2.0, 8.0), 2.0) == pytest.approx([1.0, 1.0, 1.0])


def test_growth_is_that_of_a_line_through_all_that_was_read() -> None:
    jumpy = [sample(i, disk_mb=i / 60 + 0.01 * (i % 2)) for i in range(60)]

    assert disk_growth(jumpy, (0, 60)) == pytest.approx(1.0, rel=0.02)


def test_a_table_names_what_was_left_out_and_every_mark_its_attack() -> None:
    results = Results(
        attacks=[(ATTACK, find(ATTACK, calm(), share=1.0))],
        traps=[Trapped(bomb="b", memory_mb=1, is_alive=True, has_said_why=True, said="")],
    )

    outcome = outcome_of(results, left_out=[attack_of("fill")])

    assert outcome.is_good
    assert "Left out: fill." in outcome.what
    assert {len(row) for row in outcome.rows} == {len(outcome.columns)}
    assert {mark.name.partition(":")[0] for mark in outcome.marks} == {"test", "b"}


def test_a_node_in_a_trap_must_live_stay_small_and_say_why() -> None:
    well = Trapped(bomb="b", memory_mb=1, is_alive=True, has_said_why=True, said="")
    dead, silent = replace(well, is_alive=False), replace(well, has_said_why=False)

    assert all(mark.is_met for mark in marks_of_trap(well))
    for fallen in (dead, silent, replace(well, memory_mb=101.0)):
        assert not all(mark.is_met for mark in marks_of_trap(fallen))


def test_every_kind_of_attack_is_made_and_names_are_unique() -> None:
    modules = {f"{kinds.__name__}.{info.name}" for info in pkgutil.iter_modules(kinds.__path__)}
    used = {
        (attack.run.func if isinstance(attack.run, partial) else attack.run).__module__
        for attack in ATTACKS
    }
    names = [each.name for each in (*ATTACKS, *BOMBS)]

    assert used == modules
    assert len(set(names)) == len(names)


def test_all_attacks_are_bounded_in_time_and_some_are_quick() -> None:
    assert sum(attack.seconds for attack in ATTACKS) < MAX_ALL_S / 2
    assert 1 <= sum(attack.is_quick for attack in ATTACKS) <= 4


def test_an_unknown_attack_is_an_error() -> None:
    with pytest.raises(KeyError):
        attack_of("nonsense")


def order(where: str = "/ip4/127.0.0.1/tcp/4001", **changes: object) -> Order:
    identity = new_identity()
    ticket = Ticket(
        run_id="run-0001",
        learner_key=identity.key.public_key().public_bytes_raw(),
        addresses=(f"{where}/p2p/{identity.peer}",),
        expires_unix_s=int(time.time()) + 3600,
    )
    plain = Order(
        attack="handshakes",
        ticket=ticket_protocol.format_ticket(ticket, identity.key),
        seconds=1.0,
        report="report",
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    ("sources", "least", "most"), [("one", 1, 1), ("many", 60, 60), ("mixed", 31, 31)]
)
def test_attackers_come_from_one_address_of_this_machine_or_from_many(
    sources: str, least: int, most: int
) -> None:
    scene = Scene(order(sources=sources))

    found = {scene.source(index) for index in range(640)}

    assert least <= len(found) <= most
    assert all(ip_address(host).is_loopback for host in found)
    assert "127.0.0.1" not in found, "where the honest live"


async def test_deeds_keep_their_pace_and_are_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scene = Scene(order(per_s=10.0))
    scene.begin()

    async def keep_on() -> None:
        while True:
            await scene.turn()

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_on)
            nursery.start_soon(keep_on)

    assert scene.num_tried == pytest.approx(100, abs=2)


async def test_who_was_held_up_does_not_make_up_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scene = Scene(order(per_s=10.0))
    scene.begin()
    await trio.sleep(100)

    with trio.move_on_after(1):
        while True:
            await scene.turn()

    assert scene.num_tried <= 16


async def test_who_is_turned_away_comes_again(autojump_clock: trio.testing.MockClock) -> None:
    scene = Scene(order(num_identities=2))
    seen = []

    async def act(index: int) -> None:
        seen.append(index)
        await trio.lowlevel.checkpoint()
        raise NetworkError("no")

    with trio.move_on_after(2):
        await scene.crowd(act)

    assert sorted(set(seen)) == [0, 1]
    assert len(seen) > 4
    assert scene.notes["no"] == len(seen)


async def test_a_victim_counts_who_connects() -> None:
    async with open_victim() as victim:
        _, _, host, _, port = victim.address.split("/")
        for _ in range(3):
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.aclose()
        with trio.fail_after(5):
            while victim.num_dials < 3:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.01)


async def test_a_wire_speaks_to_a_network_of_ours() -> None:
    async def answer(_: PeerId, request: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return request[::-1] * 1000

    learner = new_identity()
    async with open_network(learner, (LOOPBACK,)) as network:
        serve_calls(
            network, "/test/1", answer, max_request_bytes=99, max_reply_bytes=9999, timeout_s=5
        )
        port = int(network.addresses()[0].split("/")[4])
        target = Target(learner.peer, "127.0.0.1", port)
        async with open_wire(target, new_identity(), source="127.66.0.1") as wire:
            assert await wire.call("/test/1", b"abc", within_s=5) == b"cba" * 1000
            with pytest.raises(NetworkError):
                await wire.call("/nobody/serves/this", b"abc", within_s=5)
            with pytest.raises(NetworkError):
                await wire.call("/test/1", bytes(100), within_s=5)
            assert await wire.call("/test/1", b"xyz", within_s=5) == b"zyx" * 1000
        with trio.fail_after(5):
            await wire.wait_closed()


@pytest.mark.processes
async def test_an_attacker_waits_for_its_word_attacks_and_says_what_it_did(tmp_path: Path) -> None:
    async with open_victim() as victim:
        given = order(victim.address, report=str(tmp_path / "a.report"), per_s=50.0)
        path = tmp_path / "a.json"
        path.write_bytes(msgspec.json.encode(given))

        async with trio.open_nursery() as nursery:
            run = partial(
                trio.run_process,
                [sys.executable, "-m", "benchmarks.attacks.attacker", str(path)],
            )
            nursery.start_soon(run)
            with trio.fail_after(60):
                while not given.is_ready.exists():  # noqa: ASYNC110 - it is a file
                    await trio.sleep(0.05)
            assert victim.num_dials == 0
            given.may_begin.touch()

        report = await trio.Path(given.report).read_bytes()
        told = msgspec.json.decode(report, type=Tally)
        assert told.num_planned == 50
        assert told.num_tried > 0
        assert victim.num_dials > 0
