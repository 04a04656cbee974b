"""A trainer that dies while it loads is lost, not broken: it can be started again."""

from pathlib import Path

import pytest
import trio
import trio.testing

from echo2swarm.processes.parent import Child, open_child
from echo2swarm.system.errors import ConfigError
from learner.trainer.messages import Start
from learner.training.trainer_client import StartingTrainer, TrainerLostError


def start_of(model: Path) -> Start:
    return Start(model_dir=str(model), trainer={"kind": "sleep"}, seed=0, temperature=1.0)


async def kill_soon(child: Child) -> None:
    await trio.testing.wait_all_tasks_blocked()
    child.kill()


async def test_a_trainer_that_was_killed_while_it_loads_counts_as_lost(tmp_path: Path) -> None:
    async with (
        open_child("learner.trainer.worker", name="trainer") as child,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(kill_soon, child)
        with pytest.raises(TrainerLostError, match="while it was starting: trainer was killed"):
            await StartingTrainer(child).start(start_of(tmp_path))


async def test_a_trainer_that_refuses_what_it_is_given_is_not_tried_again(tmp_path: Path) -> None:
    async with open_child("learner.trainer.worker", name="trainer") as child:
        with pytest.raises(ConfigError, match=r"has no config\.json"):
            await StartingTrainer(child).start(start_of(tmp_path))
