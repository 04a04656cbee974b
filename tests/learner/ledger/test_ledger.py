"""The ledger refuses what must never happen, survives, and says what is wrong with it."""

import dataclasses
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from echo2swarm.scheduling.leases.batcher import TrainingBatch
from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.groups import CompleteGroup, DropReason
from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, LeaseState
from echo2swarm.scheduling.leases.open_group import Dropped
from echo2swarm.system.errors import StoreError
from learner.ledger import ledger as ledger_module
from learner.ledger.ledger import Ledger, open_ledger
from learner.ledger.refusal import Refusal
from learner.ledger.resume import Reach
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
from protocols.leases import Lease
from protocols.reasons import Reason
from tests.echo2swarm.scheduling.leases.samples import ALICE, accepted, ask, prompts, rules


@asynccontextmanager
async def opened(folder: Path, *, run_id: str = "run", bound: int = 2) -> AsyncIterator[Ledger]:
    async with open_ledger(folder / "ledger.sqlite", run_id=run_id, max_staleness=bound) as ledger:
        yield ledger


def leased() -> tuple[Lease, LeaseRecord]:
    """Return a lease of group 0 with two samples."""
    dispatch = Dispatcher(rules())
    dispatch.add_prompts(prompts(10))
    dispatch.version_published(PolicyVersion(0), 0.0)
    lease = dispatch.grant(ask(), 0.0)
    assert isinstance(lease, Lease)
    record = dispatch.leases.get(lease.lease_id)
    assert record is not None
    return lease, record


def batch(*, step: int) -> TrainingBatch:
    group = CompleteGroup(
        group_id=GroupId(0), prompt_tokens=b"\1\0\0\0", rollouts=(accepted(), accepted())
    )
    return TrainingBatch(step=step, groups=(group,))


async def judge(ledger: Ledger, lease: Lease, *indices: int, version: int = 0) -> None:
    await ledger.judged(
        lease_id=LeaseId(lease.lease_id),
        peer=ALICE,
        accepted=[((GroupId(0), index), accepted(version=version)) for index in indices],
        refused=[],
        now_unix_s=2.0,
    )


async def test_what_was_accepted_is_there_for_the_next_process(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 1)

    async with opened(tmp_path) as ledger:
        left = await ledger.resume(0, max_staleness=2, now_unix_s=3.0)

    assert (left.next_group, left.num_leases, left.updates) == (1, 1, ())
    (group,) = left.groups
    assert group.group_id == 0
    assert group.rollouts == {1: accepted()}


async def test_prompts_that_were_passed_over_are_named_for_the_next_process(
    tmp_path: Path,
) -> None:
    dispatch = Dispatcher(rules(groups_per_step=10))
    dispatch.add_prompts([prompts(1, start=number)[0] for number in (1, 4, 5)])
    dispatch.version_published(PolicyVersion(0), 0.0)
    async with opened(tmp_path) as ledger:
        for number in range(3):
            lease = dispatch.grant(ask(PeerId(f"node-{number}")), 0.0)
            assert isinstance(lease, Lease)
            record = dispatch.leases.get(lease.lease_id)
            assert record is not None
            await ledger.granted(lease, record, now_unix_s=1.0)
        left = await ledger.resume(0, max_staleness=2, now_unix_s=3.0)

    assert (left.skipped, left.next_group) == ((0, 2, 3), 6)


async def test_a_lease_that_goes_on_after_all_has_no_end_on_record(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        end = LeaseEnded(
            lease_id=record.lease_id,
            peer=ALICE,
            state=LeaseState.NODE_LOST,
            num_unfinished=2,
            took_s=1.0,
        )
        await ledger.ended([end], now_unix_s=2.0)
        await ledger.revived([record.lease_id])
        left = await ledger.resume(0, max_staleness=2, now_unix_s=3.0)

    assert [each.lease_id for each in left.leases] == [record.lease_id]


async def test_one_sample_is_never_accepted_twice(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0)

        with pytest.raises(StoreError, match="UNIQUE"):
            await judge(ledger, lease, 0)


async def test_no_rollout_is_trained_twice(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, 1)
        await ledger.trained(batch(step=0), now_unix_s=3.0)

        with pytest.raises(StoreError, match="trained twice"):
            await ledger.trained(batch(step=1), now_unix_s=4.0)


@pytest.mark.parametrize(("step", "expected"), [(2, {2: 2}), (3, None)])
async def test_no_rollout_beyond_the_bound_is_trained(
    tmp_path: Path, step: int, expected: dict[int, int] | None
) -> None:
    lease, record = leased()
    async with opened(tmp_path, bound=2) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, 1)

        if expected is None:
            with pytest.raises(StoreError, match="max_staleness"):
                await ledger.trained(batch(step=step), now_unix_s=3.0)
        else:
            await ledger.trained(batch(step=step), now_unix_s=3.0)

        assert await ledger.staleness_histogram() == (expected or {})


async def test_a_rollout_from_the_future_is_not_trained(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, 1, version=5)

        with pytest.raises(StoreError, match="CHECK"):
            await ledger.trained(batch(step=4), now_unix_s=3.0)


async def test_a_group_that_was_trained_cannot_be_dropped(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, 1)
        await ledger.trained(batch(step=0), now_unix_s=3.0)

        with pytest.raises(StoreError, match="CHECK"):
            await ledger.dropped([Dropped(GroupId(0), DropReason.STALE)], now_unix_s=4.0)


async def test_updates_after_the_checkpoint_are_handed_back_in_order(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, 1)
        await ledger.trained(batch(step=0), now_unix_s=3.0)
        await ledger.published(1, weights_sha256=b"w" * 32, size_bytes=1, now_unix_s=4.0)

        left = await ledger.resume(0, max_staleness=2, now_unix_s=5.0)
        later = await ledger.resume(1, max_staleness=2, now_unix_s=5.0)

    assert [(b.step, b.groups[0].rollouts) for b in left.updates] == [(0, (accepted(), accepted()))]
    assert left.weights_sha256 == b"w" * 32
    assert (left.groups, later.groups, later.updates) == ((), (), ())


async def test_a_run_is_not_resumed_from_where_an_update_can_not_be_made_again(
    tmp_path: Path,
) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, 1)
        await ledger.trained(batch(step=0), now_unix_s=3.0)
        await ledger.forget_tokens(before_step=1)
        reach = await ledger.reach()

        with pytest.raises(StoreError, match="of 1 updates on record, number 1 is not whole"):
            await ledger.resume(0, max_staleness=2, now_unix_s=5.0)

    assert reach == Reach(first_step=0, oldest_step=1, step=1)
    assert reach.fault_of(1) is None
    assert "are deleted" in str(reach.fault_of(0))
    assert "only 1 updates" in str(reach.fault_of(2))


async def test_rollouts_that_the_checkpoint_cannot_use_end_their_group(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0, version=3)

        left = await ledger.resume(0, max_staleness=2, now_unix_s=5.0)

    assert (left.groups, left.num_rollouts_undone) == ((), 1)


@pytest.mark.parametrize(("reward", "is_kept"), [(1e6, True), (-1.7e308, False), (1.7e308, False)])
async def test_rewards_that_no_update_can_be_made_of_end_their_group(
    tmp_path: Path, reward: float, is_kept: bool
) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await ledger.judged(
            lease_id=LeaseId(lease.lease_id),
            peer=ALICE,
            accepted=[((GroupId(0), 0), dataclasses.replace(accepted(), reward=reward))],
            refused=[],
            now_unix_s=2.0,
        )
        left = await ledger.resume(0, max_staleness=2, now_unix_s=3.0)

    assert bool(left.groups) is is_kept


async def test_prompts_that_the_task_makes_no_more_are_given_up(tmp_path: Path) -> None:
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        await ledger.granted(lease, record, now_unix_s=1.0)
        await judge(ledger, lease, 0)

        left = await ledger.resume(0, max_staleness=2, now_unix_s=5.0, are_same_prompts=False)

    assert (left.groups, left.num_rollouts_undone, left.next_group) == ((), 1, 1)


async def test_many_refusals_take_no_more_space_than_one(tmp_path: Path) -> None:
    refusals = [Refusal(Reason.STALE, f"number {i}") for i in range(50)]
    async with opened(tmp_path) as ledger:
        await ledger.refused(ALICE, refusals, now_unix_s=1.0)

    rows = sqlite3.connect(tmp_path / "ledger.sqlite").execute("SELECT * FROM refusals").fetchall()
    assert rows == [(ALICE, "stale", 50, "number 49", 1.0)]


async def test_a_failure_reaches_whoever_watches(tmp_path: Path) -> None:
    lease, _ = leased()
    async with opened(tmp_path) as ledger:
        with pytest.raises(StoreError):
            await judge(ledger, lease, 0)  # of a lease that was never granted

        with trio.fail_after(60), pytest.raises(StoreError, match="FOREIGN KEY"):
            await ledger.watch()


async def test_the_ledger_of_another_run_or_format_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    with pytest.raises(StoreError, match="is of run 'run', this is 'other'"):
        async with opened(tmp_path, run_id="other"):
            pass
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="has format 99"):
        async with opened(tmp_path):
            pass


async def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_text("garbage " * 1000)

    with pytest.raises(StoreError, match=r"ledger\.sqlite"):
        async with opened(tmp_path):
            pass


async def test_a_full_disk_pauses_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "RETRY_S", 0.05)
    lease, record = leased()
    async with opened(tmp_path) as ledger:
        (pages,) = ledger._connection.execute("PRAGMA page_count").fetchone()
        ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
        done = trio.Event()

        async def write() -> None:
            for number in range(30):
                await ledger.published(
                    number, weights_sha256=bytes(2000), size_bytes=1, now_unix_s=0.0
                )
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await trio.sleep(0.3)
            was_paused = not done.is_set()
            ledger._connection.execute("PRAGMA max_page_count = 100000")
            with trio.fail_after(60):
                await done.wait()

        assert was_paused
        await ledger.granted(lease, record, now_unix_s=1.0)
