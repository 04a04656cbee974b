"""Kill -9 of the learner, again and again, with nodes at work: nothing is lost, nothing repeated.

How often is set by ``ECHO2_TEST_KILLS`` (20 unless set): one after the other at each of the
moments below, with seeded delays, and now and then with its children in the same instant.
"""

import os
import random
import signal
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from learner.config import CheckpointConfig, LearnerConfig, SwarmConfig, TrainerConfig
from learner.demo.process import SwarmProcess
from learner.demo.swarm import LocalSwarm, open_swarm
from tests.e2e.swarms import JOIN_S, free_port, tiny_config
from tests.processes import command_line, parent_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NUM_KILLS = int(os.environ.get("ECHO2_TEST_KILLS", "20"))
NUM_STEPS = 80
MAX_STALENESS = 2
PROMPTS_PER_STEP = 4
LOOK_S = 0.002
NODE = ("--listen", "/ip4/127.0.0.1/tcp/0", "--engine-option", "rollouts_per_s=200")


def config(port: int) -> LearnerConfig:
    """Return a run whose learner is found where it was."""
    settings = tiny_config(
        num_steps=NUM_STEPS,
        max_staleness=MAX_STALENESS,
        prompts_per_step=PROMPTS_PER_STEP,
        lease_timeout_s=5.0,
        trainer=TrainerConfig(kind="sleep", train_s=0.1),
    )
    return msgspec.structs.replace(
        settings,
        swarm=SwarmConfig(listen=(f"/ip4/127.0.0.1/tcp/{port}",), heartbeat_s=0.5),
        checkpoint=CheckpointConfig(every_steps=3, keep=2),
    )


@dataclass
class Chaos:
    """Kills the learner at chosen moments, and starts it again."""

    swarm: LocalSwarm
    config: LearnerConfig
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    killed_at: Counter[str] = field(default_factory=Counter)
    num_events: int = 0

    async def kill_at(self, moment: str) -> None:
        """Let the learner get to work, and kill it when ``moment`` is seen."""
        learner, is_seen = self.swarm.learner, self._watcher(moment)
        if moment not in STARTING:
            await self._working()
        if moment == "any time":
            await trio.sleep(self.rng.uniform(0, 0.6))
        with trio.fail_after(JOIN_S):
            while not is_seen():
                assert learner.is_running, learner.obituary()
                await trio.sleep(LOOK_S)
        self._kill(learner, with_children=self.rng.random() < 0.5)
        await learner.wait()
        self.killed_at[moment] += 1

    async def restart(self) -> None:
        self.num_events = len(self.swarm.events())
        await self.swarm.launch_learner(self.config, arguments=("--resume",))

    def seen(self, event: str) -> bool:
        """Whether the present learner has logged ``event``."""
        return any(e["event"] == event for e in self.swarm.events()[self.num_events :])

    async def _working(self) -> None:
        """Return when a new update is done, after all that were made again."""
        await self.swarm.wait_for(
            lambda: self.seen("training.done") or None, timeout_s=JOIN_S, what="a new update"
        )

    def _watcher(self, moment: str) -> Callable[[], bool]:
        run_dir = self.swarm.run_dir
        started_s, delay_s = trio.current_time(), self.rng.uniform(0.3, 3.0)
        watchers: dict[str, Callable[[], bool]] = {
            "starting": lambda: trio.current_time() - started_s > delay_s,
            "resuming": lambda: self.seen("run.resumed"),
            "any time": lambda: True,
            "checkpoint": lambda: any((run_dir / "checkpoints").glob("*.partial")),
            "publish": lambda: any((run_dir / "snapshots").glob("*")),
            "ledger commit": _changed(run_dir / "ledger.sqlite-wal"),
            "batch hand-over": _grown(self, "training.started"),
        }
        return watchers[moment]

    def _kill(self, learner: SwarmProcess, *, with_children: bool) -> None:
        pids = [learner.pid]
        if with_children:
            pids += [pid for pid in self.swarm.pids() if "-m learner." in shown(pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


STARTING = ("starting", "resuming")
MOMENTS = (
    "any time",
    "checkpoint",
    "publish",
    "ledger commit",
    "batch hand-over",
    "starting",
    "resuming",
)


def shown(pid: int) -> str:
    return command_line(pid).replace("\0", " ")


def _changed(path: Path) -> Callable[[], bool]:
    def stamp() -> tuple[int, int]:
        try:
            status = path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_size

    first: list[tuple[int, int]] = []

    def look() -> bool:
        if not first:
            first.append(stamp())
        return stamp() != first[0]

    return look


def _grown(chaos: Chaos, event: str) -> Callable[[], bool]:
    first: list[int] = []

    def look() -> bool:
        num = len(chaos.swarm.events(event))
        if not first:
            first.append(num)
        return num > first[0]

    return look


def rows(swarm: LocalSwarm, query: str) -> list[Any]:
    with closing(sqlite3.connect(swarm.run_dir / "ledger.sqlite")) as ledger:
        return ledger.execute(query).fetchall()


async def test_a_learner_killed_again_and_again_loses_nothing_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    async with open_swarm(tmp_path) as swarm:
        chaos = Chaos(swarm, config(free_port()))
        ticket = await swarm.start_learner(chaos.config)
        for name in ("ada", "bob", "cyd"):
            await swarm.start_node(name, ticket, engine="sleep", arguments=NODE)
        for number in range(NUM_KILLS):
            await chaos.kill_at(MOMENTS[number % len(MOMENTS)])
            if number == NUM_KILLS // 2:
                kill_node(swarm, swarm.nodes[2])
            await chaos.restart()
        with trio.fail_after(JOIN_S):
            status = await swarm.learner.wait()
        await swarm.wait_nodes_ended(timeout_s=JOIN_S)
        ended = [node.exit_status for node in swarm.nodes]
        logs = [node.log_path.read_text() for node in swarm.nodes]

        assert status == 0
        assert sum(chaos.killed_at.values()) == NUM_KILLS
        check_every_prompt_is_accounted_for(swarm)
        check_each_update_was_made_once(swarm)
        check_no_accepted_rollout_was_lost(swarm)
        check_each_version_had_one_content(swarm)

    assert ended == [0, 0, -signal.SIGKILL]
    assert all(log.count("node.started") == 1 for log in logs), "none was started again by hand"


def kill_node(swarm: LocalSwarm, node: SwarmProcess) -> None:
    """Kill a node and its engine."""
    engines = [
        pid for pid in swarm.pids() if "node.engine" in shown(pid) and parent_of(pid) == node.pid
    ]
    for pid in (node.pid, *engines):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def check_every_prompt_is_accounted_for(swarm: LocalSwarm) -> None:
    """Each ended in one way; none was left out."""
    groups = rows(swarm, "SELECT group_id, trained_step, drop_reason FROM groups ORDER BY 1")
    ids = [group_id for group_id, *_ in groups]
    trained = [group_id for group_id, step, _ in groups if step is not None]
    skipped = set(range(max(trained))) - set(ids)

    assert all((step is None) != (reason is None) for _, step, reason in groups)
    assert len(trained) == NUM_STEPS * PROMPTS_PER_STEP, "as many as an undisturbed run trains on"
    assert len(skipped) <= PROMPTS_PER_STEP * (MAX_STALENESS + 2), f"never leased: {skipped}"
    assert rows(swarm, "SELECT COUNT(*) FROM leases WHERE outcome IS NULL") == [(0,)]


def check_each_update_was_made_once(swarm: LocalSwarm) -> None:
    """With as many groups as configured, all of them whole, and none too stale."""
    per_step = rows(
        swarm,
        "SELECT trained_step, COUNT(DISTINCT group_id), COUNT(*), MIN(staleness), MAX(staleness) "
        "FROM rollouts WHERE trained_step IS NOT NULL GROUP BY 1 ORDER BY 1",
    )

    assert [step for step, *_ in per_step] == list(range(NUM_STEPS))
    sizes = {(num_groups, num_rollouts) for _, num_groups, num_rollouts, _, _ in per_step}
    assert sizes == {(PROMPTS_PER_STEP, 8 * PROMPTS_PER_STEP)}
    assert all(low >= 0 and high <= MAX_STALENESS for *_, low, high in per_step)


def check_no_accepted_rollout_was_lost(swarm: LocalSwarm) -> None:
    """What a node was told is accepted is on record: trained on, or dropped with its group."""
    (recorded,) = rows(
        swarm,
        "SELECT COUNT(*), COUNT(rollouts.trained_step), COUNT(drop_reason) "
        "FROM rollouts JOIN groups USING (group_id)",
    )
    num_told = sum(event["num_accepted"] for event in swarm.events("rollouts.judged"))

    assert num_told <= recorded[0]
    assert recorded[0] == recorded[1] + recorded[2]


def check_each_version_had_one_content(swarm: LocalSwarm) -> None:
    """However often it was made."""
    contents = defaultdict(set)
    for event in swarm.events("version.published"):
        contents[event["version"]].add(event["root_sha256"])

    assert all(len(roots) == 1 for roots in contents.values())
    # Most differ from each other: what was compared is not always the same.
    assert len({min(roots) for roots in contents.values()}) > NUM_STEPS // 2
    assert swarm.events("version.differs") == []
