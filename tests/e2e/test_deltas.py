"""Deltas in a whole swarm: processes, real libp2p on loopback, and weights that change."""

from pathlib import Path

import pytest

from learner.config import TrainerConfig
from learner.demo.swarm import LocalSwarm, open_swarm
from tests.e2e.swarms import JOIN_S, LOOPBACK, no_update_before, tiny_config

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NODES = ("ada", "bob")


def held(swarm: LocalSwarm, name: str, how: str) -> list[str]:
    """Return what a node's log says of versions that it came to hold in this way."""
    lines = (swarm.log_dir / f"{name}.log").read_text().splitlines()
    return [line for line in lines if "version.held" in line and f"how={how}" in line]


async def test_nodes_hold_one_version_whole_and_the_others_by_deltas(tmp_path: Path) -> None:
    config = tiny_config(num_steps=8, trainer=TrainerConfig(kind="sleep", train_s=1.0))
    async with open_swarm(tmp_path / "swarm") as swarm:
        ticket = await swarm.start_learner(config)
        async with no_update_before(swarm, NODES):
            for name in NODES:
                await swarm.start_node(
                    name, ticket, engine="sleep", arguments=("--listen", LOOPBACK)
                )
        await swarm.wait_finished(timeout_s=JOIN_S)

        published = swarm.events("version.published")
        offered = [event for event in published if event["delta_bytes"]]
        assert len(offered) >= 6
        for name in NODES:
            assert len(held(swarm, name, "full")) >= 1
            assert len(held(swarm, name, "delta")) >= 2
        status = swarm.status()
        assert status is not None
        assert status.learner_step == 8
        whole_bytes = published[0]["size_bytes"]
        for node in status.nodes:
            assert node.payload_bytes_received < 0.8 * whole_bytes * len(published)
