"""Saving beside the training, going on after a crash, and stopping when nothing comes of it."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import structlog
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from echo2swarm.system.errors import ChildError, StoreError
from echo2swarm.system.identity import Identity
from learner import app
from learner.config import CheckpointConfig, LearnerConfig
from learner.run.run_dir import RunDir
from learner.trainer.messages import TrainGroup, Updated
from learner.training.trainer_client import TrainerLostError
from learner.training.training_loop import TrainingFailedError
from protocols.ids import RunId
from tests.learner.swarm_world import FakeTrainer, World, config, open_world


def saving(*, every_steps: int = 1, num_steps: int = 6) -> LearnerConfig:
    return msgspec.structs.replace(
        config(num_steps=num_steps), checkpoint=CheckpointConfig(every_steps=every_steps)
    )


async def finish(world: World) -> None:
    world.start_node(1)
    world.start_node(2)
    with trio.fail_after(2000):
        await world.finished.wait()


class SlowSaver(FakeTrainer):
    """Notes how many checkpoints are written at once, and what is done meanwhile."""

    def __init__(self) -> None:
        super().__init__(train_s=1.0)
        self.save_s = 5.0
        self.num_saving = 0
        self.most_saving = 0
        self.updates_while_saving = 0

    async def update(self, step: int, groups: Sequence[TrainGroup]) -> Updated:
        self.updates_while_saving += self.num_saving
        return await super().update(step, groups)

    async def save_checkpoint(
        self, folder: Path, *, in_background: bool, on_copied: Callable[[], None]
    ) -> None:
        self.num_saving += 1
        self.most_saving = max(self.most_saving, self.num_saving)
        await super().save_checkpoint(folder, in_background=in_background, on_copied=on_copied)
        self.num_saving -= 1


@pytest.mark.parametrize("in_background", [True, False])
async def test_one_checkpoint_at_a_time_is_written_beside_the_updates_or_between_them(
    tmp_path: Path, autojump_clock: MockClock, in_background: bool
) -> None:
    trainer = SlowSaver()
    settings = msgspec.structs.replace(
        config(num_steps=6),
        checkpoint=CheckpointConfig(every_steps=1, in_background=in_background),
    )
    async with open_world(tmp_path, settings, trainer=trainer) as world:
        await finish(world)

        assert world.saved_steps == [5, 6]
    assert trainer.most_saving == 1
    assert (trainer.updates_while_saving > 0) is in_background


class FailingSaver(FakeTrainer):
    """Fails to save at some steps."""

    def __init__(self, at_steps: Sequence[int], error: str) -> None:
        super().__init__(train_s=1.0)
        self.at_steps = at_steps
        self.error = error
        self.tried: list[int] = []

    async def save_checkpoint(
        self, folder: Path, *, in_background: bool, on_copied: Callable[[], None]
    ) -> None:
        self.tried.append(self.step)
        if self.step in self.at_steps and len(self.tried) < 20:
            raise ChildError(f"trainer: {self.error}: no", error=self.error)
        await super().save_checkpoint(folder, in_background=in_background, on_copied=on_copied)


async def test_a_checkpoint_that_fails_is_tried_again_after_the_next_update(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    trainer = FailingSaver([3], "StoreError")
    with structlog.testing.capture_logs() as logs:
        async with open_world(tmp_path, saving(every_steps=3), trainer=trainer) as world:
            await finish(world)

    assert trainer.tried == [3, 4, 6]
    assert [e["step"] for e in logs if e["event"] == "checkpoint.failed"] == [3]


async def test_a_run_that_can_not_be_saved_any_more_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    trainer = FailingSaver(range(100), "StoreError")
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreError, match="nothing newer than step 0"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with open_world(tmp_path, saving(num_steps=50), trainer=trainer) as world:
            await finish(world)

    assert trainer.tried == [1, 2, 3]


class NoRoomAtFirst(FakeTrainer):
    """Finds a full disk when it is to write its first weights."""

    num_failures = 3

    async def write_weights(self, folder: Path) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise ChildError("trainer: DiskFullError: no", error="DiskFullError")
        await super().write_weights(folder)


async def test_a_run_that_starts_on_a_full_disk_waits_for_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    trainer = NoRoomAtFirst()
    async with open_world(tmp_path, saving(), trainer=trainer) as world:
        await finish(world)

        assert world.publisher.versions[0] == 0
    assert not trainer.num_failures


async def test_a_trainer_is_started_again_when_the_disk_has_room(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts_s: list[float] = []

    async def serve_once(*_: object, **__: object) -> None:
        starts_s.append(trio.current_time())
        await trio.sleep(1)
        if len(starts_s) == 1:
            raise TrainerLostError("killed")

    def disk_usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=0 if trio.current_time() < starts_s[0] + 12 else 10**9)

    monkeypatch.setattr(app, "_serve_once", serve_once)
    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    serving = app.Serving(
        config=saving(),
        run_dir=RunDir(tmp_path, RunId("run")),
        resume=False,
        say_ticket=lambda _: None,
    )
    identity = Identity.of(Ed25519PrivateKey.generate())
    await app._serve_until_done(serving, tmp_path, identity)

    assert len(starts_s) == 2
    assert starts_s[1] - starts_s[0] >= 12


async def test_a_full_disk_delays_checkpoints_and_the_end_waits_for_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    trainer = FailingSaver(range(100), "DiskFullError")
    with structlog.testing.capture_logs() as logs:
        async with open_world(tmp_path, saving(num_steps=6), trainer=trainer) as world:
            await finish(world)

            assert world.saved_steps == [6]
    assert trainer.tried == [1, 2, 3, 4, 5] + [6] * 15
    assert len([e for e in logs if e["event"] == "disk.full"]) == 1
    assert len([e for e in logs if e["event"] == "disk.has_room"]) == 1


class Diverging(FakeTrainer):
    """Gives no finite gradient in some updates."""

    def __init__(self, at_steps: Sequence[int]) -> None:
        super().__init__(train_s=1.0)
        self.at_steps = at_steps

    async def update(self, step: int, groups: Sequence[TrainGroup]) -> Updated:
        updated = await super().update(step, groups)
        return msgspec.structs.replace(
            updated, metrics={"is_not_finite": float(step in self.at_steps)}
        )


async def test_too_many_skipped_updates_in_a_row_stop_the_run_with_a_checkpoint(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = config(num_steps=50)
    trainer = msgspec.structs.replace(settings.trainer, max_skipped_steps=3)
    settings = msgspec.structs.replace(settings, trainer=trainer)
    with pytest.RaisesGroup(
        pytest.RaisesExc(TrainingFailedError, match="3 updates in a row .* checkpoint of step 8"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with open_world(tmp_path, settings, trainer=Diverging([1, 2, 5, 6, 7, 8])) as world:
            await finish(world)

    assert world.saved_steps == [8]
    assert world.learner.progress.num_skipped_steps == 5


async def test_a_learner_killed_while_it_saves_goes_on_from_the_checkpoint_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    trainer = SlowSaver()
    async with open_world(tmp_path, saving(every_steps=2), trainer=trainer) as world:
        world.start_node(1)
        while not (world.saved_steps == [2] and trainer.num_saving):  # noqa: ASYNC110
            await trio.sleep(0.01)
        published = dict(world.publisher.weights)

    async with open_world(tmp_path, saving(every_steps=2), resume=True) as world:
        weights = world.publisher.weights
        await finish(world)

        assert all(weights[v] == made for v, made in published.items() if v in weights)
        assert set(weights) & set(published)
        assert world.trainer.step == 6
        # Those before the checkpoint were not made again.
        assert len(world.trainer.batches) == 4


async def test_capacity_after_a_resume_counts_from_the_version_that_it_goes_on_from(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = saving(every_steps=5, num_steps=100)
    async with open_world(tmp_path, settings) as world:
        world.start_node(1)
        while world.learner.progress.step < 20:  # noqa: ASYNC110
            await trio.sleep(0.1)

    async with open_world(tmp_path, settings, resume=True) as world:
        most = 0
        # Hoards: takes leases, hands nothing in.
        world.start_node(2, generate_s=10_000.0)
        world.start_node(3, generate_s=10_000.0)
        for _ in range(200):
            await trio.sleep(0.1)
            most = max(most, world.learner.dispatcher.num_outstanding)
        rules = world.learner.dispatcher.rules

    limit = rules.groups_per_step * rules.group_size * (rules.max_staleness + 1)
    assert 0 < most <= limit * (1 + rules.headroom) + rules.group_size
