"""Who works in a swarm of processes: the cheapest that are enough, and others when these die."""

from pathlib import Path

import pytest

from learner.config import TrainerConfig
from learner.demo.swarm import LocalSwarm, open_swarm
from protocols.status import StatusReply
from tests.e2e.swarms import JOIN_S, LOOPBACK, tiny_config

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


async def start_node(swarm: LocalSwarm, ticket: str, name: str, *, usd_per_hour: float) -> None:
    await swarm.start_node(
        name,
        ticket,
        engine="sleep",
        arguments=(
            *("--listen", LOOPBACK, "--price", f"{usd_per_hour:g}"),
            *("--engine-option", "rollouts_per_s=60", "--engine-option", "num_tokens=4"),
        ),
    )


def wanted(status: StatusReply) -> dict[str, str]:
    return {n.name: n.directive for n in status.nodes if n.is_connected}


async def test_a_dear_node_stands_by_until_the_cheap_one_dies(tmp_path: Path) -> None:
    # 16 rollouts in two seconds: either node makes several times that.
    config = tiny_config(
        num_steps=1000,
        max_staleness=4,
        prompts_per_step=2,
        trainer=TrainerConfig(kind="sleep", train_s=2.0),
    )
    async with open_swarm(tmp_path) as swarm:
        ticket = await swarm.start_learner(config)
        await start_node(swarm, ticket, "cheap", usd_per_hour=0.5)
        await swarm.wait_status(lambda s: s.learner_step >= 2, timeout_s=JOIN_S, what="two steps")
        await start_node(swarm, ticket, "dear", usd_per_hour=5.0)
        told = await swarm.wait_status(
            lambda s: (
                any(n.name == "dear" and n.is_speed_prior for n in s.nodes)
                and wanted(s) == {"cheap": "active", "dear": "standby"}
            ),
            timeout_s=JOIN_S,
            what="the dear node to have timed its engine, and to stand by",
        )
        next(p for p in swarm.processes if p.name == "cheap").kill()
        later = await swarm.wait_status(
            lambda s: (
                wanted(s) == {"dear": "active"}
                and s.learner_step >= told.learner_step + 3
                and any(n.name == "dear" and n.num_accepted > 0 for n in s.nodes)
            ),
            timeout_s=JOIN_S,
            what="the dear node to take over",
        )

    dear = next(n for n in told.nodes if n.name == "dear")
    assert dear.num_accepted == 0
    assert later.learner_step < config.run.num_steps
    directed = [(e["name"], e["directive"]) for e in swarm.events("node.directed")]
    assert directed == [("cheap", "active"), ("dear", "active")]
