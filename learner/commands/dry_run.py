"""``serve --dry-run``: opens what a run would, but for the swarm, and says what is wrong with it.

The model is loaded, unless it would have to be fetched first, and the task's first prompts are
made, by the code that will do it. What is wrong is said in the words of a real start.
"""

from functools import partial
from pathlib import Path

import structlog
import trio

from learner.config import LearnerConfig
from learner.evaluation.held_out import num_excluded
from learner.run.model_folder import check_loads, find_run_model
from learner.run.model_limits import check_prompts_fit, longest_question
from learner.scoring.checking import check_task, has_answers_to_check
from learner.scoring.client import open_scorer

log = structlog.get_logger()


def rehearse(config: LearnerConfig) -> None:
    """Do it; nothing is left of it.

    Raises:
        ConfigError: something would not work.
        SwarmError: something does not work on this machine.
    """
    trio.run(partial(_rehearse, config))


async def _rehearse(config: LearnerConfig) -> None:
    model_dir = await find_run_model(config.model.path)
    if model_dir is None:
        log.warning(
            "dry_run.no_model",
            model=config.model.path,
            why="it is not on this machine yet, so that neither it nor the prompts were looked at",
        )
        await check_task(config.task, seed=config.run.seed)
        return
    if config.trainer.kind != "sleep":
        await check_loads(model_dir)
    await _open_task(config, model_dir, held_out_from=None)
    if has_answers_to_check(config.task):
        await check_task(config.task, seed=config.run.seed)
    longest_question(config, model_dir)
    if config.eval.every_steps:
        await _open_task(config, model_dir, held_out_from=num_excluded(config))


async def _open_task(config: LearnerConfig, model_dir: Path, *, held_out_from: int | None) -> None:
    async with open_scorer(
        config.task,
        model_dir,
        seed=config.run.seed,
        held_out_from=held_out_from,
        num_processes=1,
    ) as scorer:
        if held_out_from is None:
            await check_prompts_fit(config, model_dir, scorer)
