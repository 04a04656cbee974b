"""Does the ledger stay quick? A million rollouts, as a learner records them.

``python -m benchmarks.ledger [--quick] [--json FILE]``

Leases of 64 rollouts are granted, judged, trained on in updates of 512, and forgotten, each
through the ledger's own methods and in a transaction of its own, as in a run. Then the
questions that a run asks are asked: what status shows at each update, and what a resume
needs. The baseline is the same update at the beginning of the run, when the ledger is small.
"""

import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import click
import trio

from benchmarks.harness import Mark, Outcome, finish, ratio
from echo2swarm.scheduling.leases.batcher import TrainingBatch
from echo2swarm.scheduling.leases.groups import AcceptedRollout, CompleteGroup
from echo2swarm.scheduling.leases.lease_book import LeaseEnded, LeaseRecord, LeaseState
from echo2swarm.text.cli_errors import run_cli
from learner.ledger.ledger import Ledger, open_ledger
from protocols.ids import GroupId, LeaseId, PeerId, PolicyVersion
from protocols.leases import Lease, LeasedGroup, SampleSpec
from protocols.packed import pack_floats, pack_tokens
from protocols.sampling import SamplingParams

FULL: Final = 1_000_000
QUICK: Final = 60_000
GROUP_SIZE: Final = 8
GROUPS_PER_LEASE: Final = 8
LEASES_PER_STEP: Final = 8
NUM_NODES: Final = 50
NUM_TOKENS: Final = 64
STEPS_KEPT: Final = 20
MAX_STALENESS: Final = 4

MIN_ROLLOUTS_PER_S: Final = 5000.0
MAX_STATUS_S: Final = 0.05
MAX_GROWTH: Final = 3.0

_SAMPLING: Final = SamplingParams(temperature=1.0, max_new_tokens=NUM_TOKENS, stop_token_ids=())


@dataclass(slots=True)
class Times:
    """Seconds that each kind of call took, one after the other."""

    by_kind: dict[str, list[float]] = field(default_factory=dict)

    async def of(self, kind: str, work: Awaitable[object]) -> None:
        """Wait for ``work``, and note how long it took."""
        started_s = time.perf_counter()
        await work
        self.by_kind.setdefault(kind, []).append(time.perf_counter() - started_s)


@dataclass(frozen=True, slots=True)
class Work:
    """One lease, and what came of it."""

    lease: Lease
    record: LeaseRecord
    rollouts: dict[tuple[GroupId, int], AcceptedRollout]

    @property
    def groups(self) -> list[CompleteGroup]:
        """Its groups, all of them complete."""
        return [
            CompleteGroup(
                group_id=GroupId(group.group_id),
                prompt_tokens=group.prompt_tokens,
                rollouts=tuple(
                    self.rollouts[GroupId(group.group_id), index] for index in range(GROUP_SIZE)
                ),
            )
            for group in self.lease.groups
        ]


def work_number(number: int, step: int) -> Work:
    """Return the lease of that number, granted while the learner is at ``step``."""
    first = number * GROUPS_PER_LEASE
    version = PolicyVersion(max(0, step - number % (MAX_STALENESS + 1)))
    peer = PeerId(f"node-{number % NUM_NODES}")
    lease = Lease(
        lease_id=f"lease-{number:08d}",
        min_version=version,
        deadline_step=step + MAX_STALENESS,
        sampling=_SAMPLING,
        groups=tuple(
            LeasedGroup(
                group_id=first + offset,
                prompt_tokens=pack_tokens(range(32)),
                samples=tuple(SampleSpec(index, index) for index in range(GROUP_SIZE)),
            )
            for offset in range(GROUPS_PER_LEASE)
        ),
    )
    keys = [(GroupId(g.group_id), s.index) for g in lease.groups for s in g.samples]
    record = LeaseRecord(
        lease_id=LeaseId(lease.lease_id),
        peer=peer,
        session_id="session",
        min_version=version,
        deadline_step=step + MAX_STALENESS,
        granted_at_s=0.0,
        expires_at_s=60.0,
        samples=frozenset(keys),
        state=LeaseState.ACTIVE,
    )
    rollout = AcceptedRollout(
        tokens=pack_tokens(range(number % 1000, number % 1000 + NUM_TOKENS)),
        logprobs=pack_floats([-1.0] * NUM_TOKENS),
        version=version,
        reward=0.5,
        is_truncated=False,
        peer=peer,
        text="what was said",
    )
    return Work(lease, record, dict.fromkeys(keys, rollout))


async def record_step(ledger: Ledger, step: int, times: Times) -> None:
    """Record all that belongs to one update."""
    groups: list[CompleteGroup] = []
    for number in range(step * LEASES_PER_STEP, (step + 1) * LEASES_PER_STEP):
        work = work_number(number, step)
        await times.of("granted", ledger.granted(work.lease, work.record, now_unix_s=1.0))
        await times.of(
            "judged",
            ledger.judged(
                lease_id=work.record.lease_id,
                peer=work.record.peer,
                accepted=list(work.rollouts.items()),
                refused=(),
                now_unix_s=2.0,
            ),
        )
        end = LeaseEnded(
            lease_id=work.record.lease_id,
            peer=work.record.peer,
            state=LeaseState.DONE,
            num_unfinished=0,
            took_s=1.0,
        )
        await times.of("ended", ledger.ended([end], now_unix_s=2.0))
        groups += work.groups
    batch = TrainingBatch(step=step, groups=tuple(groups))
    await times.of("trained", ledger.trained(batch, now_unix_s=3.0))
    await times.of("status", ledger.staleness_histogram())
    if step % STEPS_KEPT == STEPS_KEPT - 1:
        await times.of("forgotten", ledger.forget_tokens(before_step=step - STEPS_KEPT))


async def measure(path: Path, num_steps: int) -> tuple[Times, float]:
    """Fill a ledger, and return the times of its calls, and of what a resume asks."""
    times = Times()
    async with open_ledger(path, run_id="bench", max_staleness=MAX_STALENESS) as ledger:
        with click.progressbar(range(num_steps), label="updates", show_pos=True) as steps:
            for step in steps:
                await record_step(ledger, step, times)
        await times.of("reach", ledger.reach())
        started_s = time.perf_counter()
        await ledger.resume(num_steps, max_staleness=MAX_STALENESS, now_unix_s=4.0)
        return times, time.perf_counter() - started_s


def outcome_of(times: Times, resume_s: float, *, size_bytes: int, num_steps: int) -> Outcome:
    """Hold what was measured against the marks."""
    num_rollouts = num_steps * LEASES_PER_STEP * GROUPS_PER_LEASE * GROUP_SIZE
    per_lease = GROUPS_PER_LEASE * GROUP_SIZE
    rows = []
    for kind, seconds in times.by_kind.items():
        tenth = max(1, len(seconds) // 10)
        rows.append(
            (
                kind,
                float(len(seconds)),
                1e3 * median(seconds[:tenth]),
                1e3 * median(seconds[-tenth:]),
                1e3 * max(seconds),
            )
        )
    judged, status = times.by_kind["judged"], times.by_kind["status"]
    trained = times.by_kind["trained"]
    tenth = max(1, len(trained) // 10)
    growth = ratio(median(trained[-tenth:]), median(trained[:tenth]))
    per_s = ratio(per_lease * len(judged), sum(judged))
    return Outcome(
        name="ledger",
        what=(
            f"{num_rollouts:,} rollouts of {NUM_TOKENS} tokens in {num_steps:,} updates; "
            f"{size_bytes / 1e6:.0f} MB on disk; what a resume asks takes {resume_s:.2f} s."
        ),
        columns=("call", "times", "first ms", "last ms", "worst ms"),
        rows=tuple(rows),
        marks=(
            Mark(name="rollouts recorded per second", value=per_s, at_least=MIN_ROLLOUTS_PER_S),
            Mark(
                name="status query, median at the end, s",
                value=median(status[-tenth:]),
                at_most=MAX_STATUS_S,
            ),
            Mark(
                name="an update's record at the end against at the beginning",
                value=growth,
                at_most=MAX_GROWTH,
            ),
        ),
        figures={
            "num_rollouts": num_rollouts,
            "rollouts_per_s": per_s,
            "resume_s": resume_s,
            "size_bytes": size_bytes,
            "median_s": {kind: median(seconds) for kind, seconds in times.by_kind.items()},
        },
    )


def run(num_rollouts: int, folder: Path | None = None) -> Outcome:
    """Measure a ledger of so many rollouts."""
    num_steps = num_rollouts // (LEASES_PER_STEP * GROUPS_PER_LEASE * GROUP_SIZE)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "ledger.sqlite"
        measured: Callable[[], Awaitable[tuple[Times, float]]] = partial(measure, path, num_steps)
        times, resume_s = trio.run(measured)
        size_bytes = path.stat().st_size
    return outcome_of(times, resume_s, size_bytes=size_bytes, num_steps=num_steps)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rollouts: some seconds.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, json_path: Path | None) -> int:
    """Measure how quick the ledger is, and stays."""
    return finish(run(QUICK if quick else FULL), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="ledger")
