"""Who works, live: with the learner's own parts, on a virtual clock."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from echo2swarm.scheduling.selection import Selection
from echo2swarm.scheduling.selection import select as really_select
from learner.config import LearnerConfig
from learner.membership import activator as module
from learner.membership.activator import MIN_GAP_S
from protocols.heartbeat import Directive, NodeState
from tests.learner.swarm_world import ScriptedNode, World, config, open_world


def settings(*, prompts_per_step: int = 2, **selector: object) -> LearnerConfig:
    """Return a run of 4 rollouts in 4 s; a node that needs 2 s for a lease makes 1/s."""
    base = config(num_steps=10_000, max_staleness=4, prompts_per_step=prompts_per_step)
    return msgspec.structs.replace(
        base, selector=msgspec.structs.replace(base.selector, **selector)
    )


def directives(world: World) -> dict[str, str]:
    return {
        node.name: node.directive
        for node in world.learner.status.status().nodes
        if node.is_connected
    }


async def until(is_true: Callable[[], bool], within_s: float = 300.0) -> None:
    with trio.fail_after(within_s):
        while not is_true():  # noqa: ASYNC110
            await trio.sleep(0.5)


def work_alone(world: World, *names: str) -> bool:
    return {name for name, told in directives(world).items() if told == "active"} == set(names)


async def test_the_dear_node_stands_by_while_the_cheap_one_is_enough_and_steps_in_when_it_dies(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        cheap = world.start_node(1, usd_per_hour=1.0, generate_s=1.0)
        dear = world.start_node(2, usd_per_hour=5.0, generate_s=1.0)
        await until(lambda: work_alone(world, cheap.name))
        steps_before = world.trainer.step
        await trio.sleep(60)
        assert work_alone(world, cheap.name)
        why = next(n.why for n in world.learner.status.status().nodes if n.name == dear.name)

        with capture_logs() as logged:
            cheap.kill()
            await until(lambda: work_alone(world, dear.name), within_s=30)
            await trio.sleep(30)

    assert world.trainer.step >= steps_before + 15
    assert "others supply" in why
    told = [e for e in logged if e["event"] == "node.directed"]
    assert [(e["name"], e["directive"]) for e in told] == [(dear.name, "active")]
    assert told[0]["why"].startswith("active")
    assert "selection.made" in [e["event"] for e in logged]


async def test_all_work_while_they_are_too_few(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, settings(prompts_per_step=20)) as world:
        nodes = [world.start_node(i, usd_per_hour=float(i)) for i in range(1, 4)]
        await trio.sleep(60)

        assert work_alone(world, *(node.name for node in nodes))
        selection = world.learner.activator.selection

    assert selection is not None
    assert selection.shortfall is not None
    assert selection.shortfall.add is not None
    assert selection.shortfall.add.like == nodes[0].peer


async def test_a_price_that_rises_costs_a_node_its_work(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        one = world.start_node(1, usd_per_hour=1.0, generate_s=1.0)
        two = world.start_node(2, usd_per_hour=2.0, generate_s=1.0)
        await until(lambda: work_alone(world, one.name))
        one.usd_per_hour = 4.0
        await until(lambda: work_alone(world, two.name))
        two.usd_per_hour = 4.2
        await trio.sleep(60)

        assert work_alone(world, two.name)


async def test_a_node_above_the_price_cap_never_works(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings(max_node_usd_per_hour=3.0), train_s=0.5) as world:
        cheap = world.start_node(1, usd_per_hour=1.0)
        world.start_node(2, usd_per_hour=3.5)
        for _ in range(40):
            await trio.sleep(1)
            assert set(directives(world).values()) <= {"active", "standby"}
            assert work_alone(world, cheap.name) or work_alone(world)


async def test_one_that_claims_to_be_fast_works_until_it_shows_that_it_is_not(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        honest = world.start_node(1, usd_per_hour=2.0, generate_s=1.0)
        await until(lambda: world.trainer.step > 5)
        liar = world.start_node(2, usd_per_hour=0.5, generate_s=8.0, calibrated_tokens_per_s=1e9)
        await liar.joined.wait()
        await until(lambda: bool(liar.leases))
        await until(lambda: work_alone(world, honest.name))
        await trio.sleep(120)

        lines = {node.name: node for node in world.learner.status.status().nodes}
        assert work_alone(world, honest.name)
        assert (lines[liar.name].speed_rollouts_per_s or 0.0) < 0.5


async def test_a_cheaper_node_that_joins_replaces_a_dearer_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        dear = world.start_node(1, usd_per_hour=5.0, generate_s=1.0)
        await until(lambda: world.trainer.step > 5)
        cheap = world.start_node(2, usd_per_hour=1.0, generate_s=1.0)
        await until(lambda: work_alone(world, cheap.name))
        await trio.sleep(60)

        assert work_alone(world, cheap.name)
        assert dear.directive is Directive.STANDBY


async def test_one_that_drains_is_out_of_the_set_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        cheap = world.start_node(1, usd_per_hour=1.0, generate_s=1.0)
        dear = world.start_node(2, usd_per_hour=5.0, generate_s=1.0)
        await until(lambda: work_alone(world, cheap.name))
        cheap.state = NodeState.DRAINING
        await cheap.heartbeat()
        await trio.sleep(2 * MIN_GAP_S)

        assert work_alone(world, dear.name)


async def test_nobody_is_switched_back_and_forth(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(tmp_path, settings()) as world:
        nodes = [
            world.start_node(i, usd_per_hour=1.0 + i / 100, generate_s=1.5 + i / 10)
            for i in range(1, 7)
        ]
        await trio.sleep(120)
        with capture_logs() as logged:
            for second in range(240):
                await trio.sleep(1)
                for number, node in enumerate(nodes):  # their prices tremble
                    node.usd_per_hour *= 1.03 if (second + number) % 2 else 1 / 1.03

    assert len([e for e in logged if e["event"] == "node.directed"]) <= 4


async def test_what_happens_within_a_second_is_one_choice(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen_at_s: list[float] = []

    def select(*args: object, **options: object) -> Selection:
        chosen_at_s.append(trio.current_time())
        return really_select(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "select", select)
    async with open_world(tmp_path, settings()) as world:
        nodes = [world.start_node(i, generate_s=1e6, broadcast_s=0.3) for i in range(1, 10)]
        for node in nodes:
            await node.joined.wait()
        for number in range(200):
            state = NodeState.SYNCING if number % 2 else NodeState.ACTIVE
            await nodes[number % 9].heartbeat(state=state)
        passed_s = trio.current_time()

    assert 2 <= len(chosen_at_s) <= passed_s / MIN_GAP_S + 2
    gaps = [later - sooner for sooner, later in pairwise(chosen_at_s)]
    assert min(gaps) >= MIN_GAP_S - 1e-6


async def test_an_answer_that_comes_too_late_is_dropped(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[ScriptedNode] = []

    async with open_world(tmp_path, settings()) as world:

        async def run_sync(work: Callable[[], Selection], **_options: object) -> Selection:
            made = work()
            if len(late) < 1:  # somebody comes while it is being computed
                late.append(world.start_node(7, generate_s=1e6, broadcast_s=0.3))
                await late[0].joined.wait()
            await trio.sleep(0.1)
            return made

        world.start_node(1, generate_s=1e6, broadcast_s=1e6)
        await trio.sleep(10)
        before = world.learner.activator.selection
        monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
        world.learner.activator.changed()
        await until(lambda: bool(late))
        await late[0].joined.wait()
        await trio.sleep(0.5)
        kept = world.learner.activator.selection
        await trio.sleep(2 * MIN_GAP_S)
        after = world.learner.activator.selection

    assert kept is before
    assert after is not before
    assert after is not None
    assert late[0].peer in after.choices


async def test_reasons_do_not_change_with_every_number(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, settings()) as world:
        cheap = world.start_node(1, usd_per_hour=1.0, generate_s=1.0)
        dear = world.start_node(2, usd_per_hour=5.0, generate_s=1.0)
        await until(lambda: work_alone(world, cheap.name))
        said = []
        for _ in range(120):
            await trio.sleep(1)
            said.append((await dear.heartbeat()).why)

    assert len(set(said)) <= 4
