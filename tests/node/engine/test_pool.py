"""Several engines as one: first in-process ones, then real children."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from echo2swarm.system.errors import ChildError
from node.engine.base import (
    EngineBrokenError,
    EngineDownError,
    EngineEvent,
    EngineExited,
    EngineLostError,
    EngineReady,
    EngineWeakened,
    PolicyFiles,
)
from node.engine.messages import Completion, Generated
from node.engine.options import SleepOptions, TransformersOptions
from node.engine.placement import engine_specs
from node.engine.pool import EnginePool, _Member, open_engines
from node.engine.process import EngineSpec
from protocols.ids import PolicyVersion
from protocols.leases import LeasedGroup, SampleSpec
from protocols.rollouts import FinishReason
from protocols.sampling import SamplingParams
from tests.node.engine.tiny_policy import tiny_model, write_policy

SAMPLING = SamplingParams(temperature=1.0, max_new_tokens=4, stop_token_ids=(3,))


def group(group_id: int, num_samples: int) -> LeasedGroup:
    samples = tuple(SampleSpec(index, 100 * group_id + index) for index in range(num_samples))
    return LeasedGroup(group_id, b"\x01\x00\x00\x00", samples)


def policy(version: int) -> PolicyFiles:
    return PolicyFiles(version=PolicyVersion(version), weights_dir=Path(), assets_dir=Path())


@dataclass(eq=False)
class FakeEngine:
    """Answers after a second, unless it is to fail."""

    applied_version: PolicyVersion | None = None
    is_running: bool = True
    num_restarts: int = 0
    pids: tuple[int, ...] = ()
    load_error: ChildError | None = None
    error: ChildError | None = None
    calls: list[tuple[LeasedGroup, ...]] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)

    async def load_policy(self, files: PolicyFiles) -> float:
        await trio.sleep(1)
        if self.load_error is not None:
            raise self.load_error
        self.loaded.append(files.version)
        self.applied_version = files.version
        return 1.0

    async def generate(
        self, groups: tuple[LeasedGroup, ...], _sampling: SamplingParams, *, on_progress: object
    ) -> Generated:
        self.calls.append(groups)
        await trio.sleep(1)
        if self.error is not None:
            raise self.error
        assert self.applied_version is not None
        version = self.applied_version
        return Generated(
            tuple(
                Completion(g.group_id, s.index, b"", b"", FinishReason.STOP, version, version)
                for g in groups
                for s in g.samples
            ),
            1.0,
        )

    @property
    def num_asked(self) -> int:
        return sum(len(g.samples) for call in self.calls for g in call)


def pool_of(*engines: FakeEngine, is_continuous: bool = False) -> EnginePool:
    spec = EngineSpec(
        kind="fake", module="", options=SleepOptions(), env={}, is_continuous=is_continuous
    )
    pool = EnginePool([spec] * len(engines), lambda _: None)
    pool._members += [_Member(engine) for engine in engines]  # type: ignore[arg-type]
    return pool


V1, V2 = PolicyVersion(1), PolicyVersion(2)


def answered(generated: Generated) -> list[tuple[int, int]]:
    return sorted((c.group_id, c.sample_index) for c in generated.completions)


def asked(groups: Sequence[LeasedGroup]) -> list[tuple[int, int]]:
    return sorted((g.group_id, s.index) for g in groups for s in g.samples)


GROUPS = (group(1, 4), group(2, 4), group(3, 4))


async def test_one_call_is_divided_and_every_sample_answered_once(
    autojump_clock: MockClock,
) -> None:
    engines = [FakeEngine(V1), FakeEngine(V1)]
    generated = await pool_of(*engines).generate(GROUPS, SAMPLING)
    assert answered(generated) == asked(GROUPS)
    assert sorted(engine.num_asked for engine in engines) == [4, 8]
    assert generated.seconds == pytest.approx(1)


async def test_calls_to_engines_that_batch_by_themselves_go_whole_to_whoever_has_least(
    autojump_clock: MockClock,
) -> None:
    engines = [FakeEngine(V1), FakeEngine(V1)]
    pool = pool_of(*engines, is_continuous=True)
    assert pool.is_continuous
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(pool.generate, [group(number, 4)], SAMPLING)
    assert [len(engine.calls) for engine in engines] == [2, 2]
    await pool.generate([group(9, 4)], SAMPLING)
    assert sum(len(engine.calls) for engine in engines) == 5


@pytest.mark.parametrize("is_continuous", [False, True])
async def test_what_an_engine_dies_of_another_samples(
    autojump_clock: MockClock, is_continuous: bool
) -> None:
    engines = [FakeEngine(V1, error=EngineLostError("killed")), FakeEngine(V1)]
    pool = pool_of(*engines, is_continuous=is_continuous)
    assert answered(await pool.generate(GROUPS, SAMPLING)) == asked(GROUPS)


async def test_where_all_die_the_call_fails_after_each_was_tried_once(
    autojump_clock: MockClock,
) -> None:
    engines = [FakeEngine(V1, error=EngineLostError("killed")) for _ in range(3)]
    with pytest.raises(EngineLostError):
        await pool_of(*engines, is_continuous=True).generate(GROUPS, SAMPLING)
    assert [len(engine.calls) for engine in engines] == [1, 1, 1]


async def test_what_an_engine_refuses_is_not_tried_on_another(autojump_clock: MockClock) -> None:
    engines = [FakeEngine(V1, error=ChildError("too long", error="no")), FakeEngine(V1)]
    pool = pool_of(*engines, is_continuous=True)
    with pytest.raises(ChildError, match="too long"):
        await pool.generate(GROUPS, SAMPLING)
    assert not engines[1].calls
    # It is as free as before.
    engines[0].error = None
    await pool.generate(GROUPS, SAMPLING)
    assert len(engines[0].calls) == 2


async def test_without_a_living_engine_calls_fail_at_once() -> None:
    pool = pool_of(FakeEngine(None, is_running=False), FakeEngine(None, is_running=False))
    with pytest.raises(EngineDownError):
        await pool.generate(GROUPS, SAMPLING)
    with pytest.raises(EngineDownError):
        await pool.load_policy(policy(1))
    assert pool.applied_version is None


@pytest.mark.parametrize(
    ("versions", "applied"),
    [((1, 1), 1), ((1, 2), 1), ((1, None), None), ((None, None), None)],
)
def test_the_pool_has_the_oldest_version_that_its_living_engines_have(
    versions: tuple[Any, Any], applied: int | None
) -> None:
    engines = [FakeEngine(version) for version in versions]
    assert pool_of(*engines).applied_version == applied
    assert pool_of(*engines, FakeEngine(None, is_running=False)).applied_version == applied


async def test_a_version_is_applied_to_those_that_lack_it_and_at_once_to_all(
    autojump_clock: MockClock,
) -> None:
    engines = [FakeEngine(V1), FakeEngine(V2), FakeEngine(None)]
    pool = pool_of(*engines)
    started_s = trio.current_time()
    await pool.load_policy(policy(2))
    assert trio.current_time() - started_s == pytest.approx(1)
    assert [engine.loaded for engine in engines] == [[2], [], [2]]
    assert pool.applied_version == 2
    assert await pool.load_policy(policy(2)) == 0


async def test_an_engine_that_dies_of_a_version_does_not_keep_the_others_from_it(
    autojump_clock: MockClock,
) -> None:
    engines = [FakeEngine(V1, load_error=EngineLostError("killed")), FakeEngine(V1)]
    pool = pool_of(*engines)
    await pool.load_policy(policy(2))
    engines[0].is_running = False
    assert pool.applied_version == 2


async def test_a_version_that_all_die_of_is_told_as_such(autojump_clock: MockClock) -> None:
    engines = [FakeEngine(V1, load_error=EngineLostError("killed")) for _ in range(2)]
    with pytest.raises(EngineLostError):
        await pool_of(*engines).load_policy(policy(2))


async def test_where_one_refuses_a_version_only_those_of_the_told_version_sample(
    autojump_clock: MockClock,
) -> None:
    engines = [FakeEngine(V1, load_error=ChildError("bad", error="shape")), FakeEngine(V1)]
    pool = pool_of(*engines)
    with pytest.raises(ChildError, match="bad"):
        await pool.load_policy(policy(2))
    assert pool.applied_version == 1
    generated = await pool.generate(GROUPS, SAMPLING)
    assert {c.newest_version for c in generated.completions} == {1}
    assert not engines[1].calls


# Real children.


class Heard:
    """Events, and waiting for them."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self._changed = trio.Event()

    def take(self, event: EngineEvent) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    def num(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@asynccontextmanager
async def two_sleepers(folder: Path) -> AsyncIterator[tuple[EnginePool, Heard]]:
    specs = engine_specs(
        "sleep", SleepOptions(rollouts_per_s=1000, num_tokens=4), num=2, env=os.environ
    )
    heard = Heard()
    async with open_engines(specs, log_path=folder / "engine.log", on_event=heard.take) as pool:
        assert isinstance(pool, EnginePool)
        with trio.fail_after(120):
            await heard.until(lambda: heard.num(EngineReady) == 2)
            yield pool, heard


async def test_a_killed_engine_is_missed_by_nobody_and_takes_part_again(tmp_path: Path) -> None:
    files = write_policy(tmp_path, 1, tiny_model(seed=1))
    async with two_sleepers(tmp_path) as (pool, heard):
        assert len(set(pool.pids)) == 2
        await pool.load_policy(files)
        os.kill(pool.pids[0], signal.SIGKILL)
        await heard.until(lambda: heard.num(EngineWeakened) == 1)
        assert pool.applied_version == 1
        assert answered(await pool.generate(GROUPS, SAMPLING)) == asked(GROUPS)

        await heard.until(lambda: heard.num(EngineReady) == 3)
        lacks_it = pool.applied_version is None
        assert lacks_it
        assert pool.num_restarts == 1
        await pool.load_policy(files)
        assert answered(await pool.generate(GROUPS, SAMPLING)) == asked(GROUPS)
    assert heard.num(EngineExited) == 0
    assert {"engine-1.log", "engine-2.log"} <= set(os.listdir(tmp_path))


async def test_the_death_of_the_last_one_is_that_of_the_pool(tmp_path: Path) -> None:
    async with two_sleepers(tmp_path) as (pool, heard):
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        # If both are known to be dead when the first death is told, that is the pool's already.
        await heard.until(lambda: heard.num(EngineExited) + heard.num(EngineWeakened) == 2)
        assert heard.num(EngineExited) >= 1
        await heard.until(lambda: heard.num(EngineReady) == 4)


async def test_the_description_says_how_many_there_are(tmp_path: Path) -> None:
    async with two_sleepers(tmp_path) as (_, heard):
        pass
    described = {e.description.device for e in heard.events if isinstance(e, EngineReady)}
    assert len(described) == 1
    assert described.pop().startswith("2 x ")


@pytest.mark.model
async def test_where_no_engine_can_work_the_pool_ends_with_what_they_say(tmp_path: Path) -> None:
    specs = [
        spec
        for device in ("cuda:7", "cuda:8")
        for spec in engine_specs(
            "transformers", TransformersOptions(device=device), num=1, env=os.environ
        )
    ]
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_engines(specs, log_path=tmp_path / "engine.log", on_event=lambda _: None):
            await trio.sleep_forever()
    assert caught.group_contains(EngineBrokenError)


@pytest.mark.model
async def test_an_engine_that_can_not_work_here_leaves_the_work_to_the_others(
    tmp_path: Path,
) -> None:
    (sleeper,) = engine_specs("sleep", SleepOptions(num_tokens=4), num=1, env=os.environ)
    (broken,) = engine_specs(
        "transformers", TransformersOptions(device="cuda:7"), num=1, env=os.environ
    )
    files = write_policy(tmp_path, 1, tiny_model(seed=1))
    heard = Heard()
    async with open_engines(
        [sleeper, broken], log_path=tmp_path / "engine.log", on_event=heard.take
    ) as pool:
        await heard.until(lambda: heard.num(EngineReady) == 1)
        assert isinstance(pool, EnginePool)
        with trio.fail_after(120):
            while not pool._num_broken:  # noqa: ASYNC110 - it tells nobody but the log
                await trio.sleep(0.05)
        await pool.load_policy(files)
        assert answered(await pool.generate(GROUPS, SAMPLING)) == asked(GROUPS)
