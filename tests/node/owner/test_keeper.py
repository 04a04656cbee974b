"""The owner's say, on a virtual clock, with a GPU that does as the test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.system.errors import UsageError
from node.owner.gpu import GpuReading, GpuUnreadableError, GpuUse
from node.owner.hours import parse_hours
from node.owner.keeper import GPU_LOOK_S, OwnerKeeper
from node.owner.policy import GPU_QUIET_S
from node.owner.settings import OwnerSettings

OWN_PID = 10
NOON_UNIX_S = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()


@dataclass
class FakeNode:
    told: list[str] = field(default_factory=list)
    settings: list[OwnerSettings] = field(default_factory=list)

    def pause(self, *, relays: bool) -> None:
        self.told.append("pause, relaying" if relays else "pause")

    def resume(self) -> None:
        self.told.append("resume")

    def drain(self) -> None:
        self.told.append("drain")

    def limit(self, settings: OwnerSettings) -> None:
        self.settings.append(settings)


@dataclass
class FakeGpu:
    uses: tuple[GpuUse, ...] = ()
    is_broken: bool = False
    refuses_power: bool = False
    caps: list[float] = field(default_factory=list)

    def read(self) -> GpuReading:
        if self.is_broken:
            raise GpuUnreadableError("fell off the bus")
        return GpuReading(
            name="Fake", driver="1", total_bytes=2**34, used_bytes=2**30, uses=self.uses
        )

    def cap_power(self, watts: float) -> float:
        if self.refuses_power:
            raise GpuUnreadableError("not without root")
        self.caps.append(watts)
        return watts


@dataclass
class World:
    node: FakeNode
    gpu: FakeGpu
    keeper: OwnerKeeper
    jump_s: float = 0.0

    def now_unix_s(self) -> float:
        return NOON_UNIX_S + self.jump_s + trio.current_time()


@asynccontextmanager
async def open_world(settings: OwnerSettings, *, has_gpu: bool = True) -> AsyncIterator[World]:
    node, gpu = FakeNode(), FakeGpu()
    keeper = OwnerKeeper(
        settings,
        node,
        monitor=gpu if has_gpu else None,
        own_pid=OWN_PID,
        unix_now_s=lambda: NOON_UNIX_S + world.jump_s + trio.current_time(),
        local_at=lambda unix_s: datetime.fromtimestamp(unix_s, UTC),
        parent_of={30: OWN_PID}.get,
    )
    world = World(node, gpu, keeper)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        await trio.sleep(0.1)
        yield world
        nursery.cancel_scope.cancel()


async def test_an_order_takes_effect_at_once_and_ends_by_itself(autojump_clock: MockClock) -> None:
    async with open_world(OwnerSettings()) as world:
        said = world.keeper.pause(for_s=3600, why="gaming", now_s=trio.current_time())
        assert world.node.told == ["pause"]
        assert "1.0 h" in said or "60 min" in said
        assert "gaming" in world.keeper.paused
        until = world.keeper.until_unix_s(trio.current_time())
        assert until == pytest.approx(world.now_unix_s() + 3600)

        await trio.sleep(3602)
        assert world.node.told == ["pause", "resume"]
        assert world.keeper.paused == ""


async def test_a_pause_by_the_hour_comes_and_goes_with_the_clock(autojump_clock: MockClock) -> None:
    async with open_world(OwnerSettings(hours=parse_hours("13:00-14:00"))) as world:
        assert world.node.told == ["pause"]
        assert world.keeper.until_unix_s(trio.current_time()) == NOON_UNIX_S + 3600
        await trio.sleep(3601)
        assert world.node.told == ["pause", "resume"]
        await trio.sleep(3601)
        assert world.node.told == ["pause", "resume", "pause"]


async def test_a_clock_that_is_set_is_followed_but_moves_no_ordered_pause(
    autojump_clock: MockClock,
) -> None:
    async with open_world(OwnerSettings(hours=parse_hours("13:00-14:00"))) as world:
        world.jump_s = 3600 + 60
        await trio.sleep(2)
        assert world.node.told == ["pause", "resume"]

        world.keeper.pause(for_s=100, why="", now_s=trio.current_time())
        world.jump_s += 10
        await trio.sleep(95)
        assert world.node.told == ["pause", "resume", "pause"]
        await trio.sleep(10)
        assert world.node.told == ["pause", "resume", "pause", "resume"]


async def test_resuming_says_what_still_keeps_it_from_work(autojump_clock: MockClock) -> None:
    async with open_world(OwnerSettings(hours=parse_hours("13:00-14:00"))) as world:
        world.keeper.pause(for_s=None, why="", now_s=trio.current_time())

        assert "outside its hours" in world.keeper.resume(trio.current_time())
        assert world.node.told == ["pause"]


async def test_another_user_of_the_gpu_pauses_it_until_it_was_quiet(
    autojump_clock: MockClock,
) -> None:
    async with open_world(OwnerSettings(pause_on_gpu_use=True)) as world:
        world.gpu.uses = (GpuUse(pid=30, name="engine", memory_bytes=2**33),)
        await trio.sleep(3 * GPU_LOOK_S)
        assert world.node.told == []

        world.gpu.uses += (GpuUse(pid=99, name="game", memory_bytes=2**32),)
        await trio.sleep(2 * GPU_LOOK_S)
        assert world.node.told == ["pause"]
        assert "game" in world.keeper.paused

        world.gpu.uses = world.gpu.uses[:1]
        await trio.sleep(GPU_QUIET_S - 2 * GPU_LOOK_S)
        assert world.node.told == ["pause"]
        await trio.sleep(4 * GPU_LOOK_S)
        assert world.node.told == ["pause", "resume"]


async def test_a_gpu_that_cannot_be_read_stops_nothing(autojump_clock: MockClock) -> None:
    async with open_world(OwnerSettings(pause_on_gpu_use=True, power_watts=200)) as world:
        world.gpu.is_broken = world.gpu.refuses_power = True
        await trio.sleep(60)
        assert world.node.told == []


async def test_a_power_cap_is_asked_for_once_and_again_when_it_changes(
    autojump_clock: MockClock,
) -> None:
    async with open_world(OwnerSettings(power_watts=200)) as world:
        await trio.sleep(30)
        world.keeper.change({"power-watts": "150"}, trio.current_time())
        await trio.sleep(30)
    assert world.gpu.caps == [200, 150]


async def test_settings_are_applied_and_those_about_a_pause_at_once(
    autojump_clock: MockClock,
) -> None:
    async with open_world(OwnerSettings(), has_gpu=False) as world:
        world.keeper.pause(for_s=None, why="", now_s=trio.current_time())
        world.keeper.change({"relay-while-paused": "yes"}, trio.current_time())
        assert world.node.told == ["pause", "pause, relaying"]
        seen = [world.keeper.is_relaying]
        world.keeper.change({"relay-while-paused": "no"}, trio.current_time())
        seen += [world.keeper.is_relaying]
        assert seen == [True, False]

        world.keeper.resume(trio.current_time())
        world.keeper.change({"hours": "22:00-07:00"}, trio.current_time())
        assert world.node.told[-2:] == ["resume", "pause"]

        settings = replace(world.keeper.settings)
        with pytest.raises(UsageError):
            world.keeper.change({"hours": "always", "upload-mbit": "x"}, trio.current_time())
        assert world.keeper.settings == settings


async def test_a_node_that_drains_is_told_so_once(autojump_clock: MockClock) -> None:
    async with open_world(OwnerSettings()) as world:
        world.keeper.pause(for_s=None, why="", now_s=trio.current_time())
        world.keeper.drain(trio.current_time())
        await trio.sleep(10)
    assert world.node.told == ["pause", "drain"]


async def test_what_needs_a_look_at_the_gpu_is_refused_where_there_is_none(
    autojump_clock: MockClock,
) -> None:
    async with open_world(OwnerSettings(), has_gpu=False) as world:
        for name, value in (("power-watts", "100"), ("pause-on-gpu-use", "yes")):
            with pytest.raises(UsageError, match=f"{name}.*echo2-node doctor"):
                world.keeper.change({"upload-mbit": "5", name: value}, trio.current_time())
        assert world.keeper.settings == OwnerSettings()

        world.keeper.change({"pause-on-gpu-use": "no"}, trio.current_time())
