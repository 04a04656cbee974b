from pathlib import Path

import msgspec
import pytest
import trio

from echo2swarm.system.errors import SwarmError
from echo2swarm.system.jsonl import JsonLines
from learner.demo.swarm import needs_nodes, open_swarm
from tests.echo2swarm.sample_run import NUM_STEPS, write_run
from tests.echo2swarm.sample_status import STATUS


async def test_an_event_is_awaited_by_its_name_and_fields(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with open_swarm(tmp_path) as swarm, trio.open_nursery() as nursery:
        swarm.run_dir.mkdir()

        async def happen() -> None:
            with JsonLines(swarm.run_dir / "events.jsonl") as lines:
                await trio.sleep(5)
                lines.write({"event": "node.lost", "name": "node-1"})
                await trio.sleep(5)
                lines.write({"event": "node.lost", "name": "node-2"})

        nursery.start_soon(happen)
        event = await swarm.wait_event("node.lost", name="node-2", timeout_s=60)

        assert event == {"event": "node.lost", "name": "node-2"}
        assert trio.current_time() >= 10


async def test_waiting_ends_with_the_deadline_and_says_for_what(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with open_swarm(tmp_path) as swarm:
        with pytest.raises(SwarmError, match="waited 30 s in vain for the first step"):
            await swarm.wait_status(lambda _: True, timeout_s=30, what="the first step")


async def test_what_the_learner_writes_of_itself_is_read(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        write_run(swarm.run_dir)

        status = await swarm.wait_status(
            lambda s: s.learner_step == NUM_STEPS, timeout_s=60, what="the end"
        )

        assert status.phase == "finished"
        assert len(swarm.metrics()) == NUM_STEPS
        assert {e["event"] for e in swarm.events("version.applied")} == {"version.applied"}


async def test_a_swarm_that_was_never_started_has_no_learner(tmp_path: Path) -> None:
    async with open_swarm(tmp_path) as swarm:
        assert swarm.status() is None
        assert swarm.events() == []
        assert swarm.pids() == []
        with pytest.raises(SwarmError, match="no learner"):
            _ = swarm.learner


async def test_all_processes_end_with_the_context(tmp_path: Path) -> None:
    async with open_swarm(
        tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[3])}, grace_s=60
    ) as swarm:
        process = await swarm.start_tool(
            "tests.learner.demo.sleeper", ("--with-child",), name="sleeper"
        )
        with trio.fail_after(120):
            while len(swarm.pids()) < 2:  # noqa: ASYNC110 - they are processes
                await trio.sleep(0.05)

    assert process.exit_status == 130
    assert swarm.pids() == []


def test_nodes_may_leave_once_the_last_step_is_done_and_not_before() -> None:
    assert needs_nodes(None)
    assert needs_nodes(msgspec.structs.replace(STATUS, learner_step=31, num_steps=32))
    assert not needs_nodes(msgspec.structs.replace(STATUS, learner_step=32, num_steps=32))
