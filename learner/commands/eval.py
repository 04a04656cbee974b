"""``echo2-learner eval``: from what the user names to a table of figures."""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import get_terminal_size, rmtree

import click
import msgspec
import structlog
import trio

from echo2swarm.system.errors import UsageError
from echo2swarm.system.logging import configure_logging
from learner.commands.export import export_checkpoint
from learner.config import LearnerConfig
from learner.evaluation.evaluator import (
    EvaluationPlan,
    PolicyFolder,
    Rewards,
    evaluate_policy,
    open_evaluation_engine,
)
from learner.evaluation.held_out import draw_held_out, num_excluded
from learner.evaluation.progress import ProgressLine
from learner.evaluation.report import as_json, as_table
from learner.export.source import (
    BASE,
    CheckpointSource,
    RunSource,
    find_checkpoint,
    hold_checkpoint,
    is_model_folder,
    read_run_source,
)
from learner.run.inputs import read_inputs
from learner.run.model_folder import prepare_model
from learner.run.run_dir import RunDir
from learner.scoring.client import ProcessScorer, open_scorer
from learner.tasks.inputs import Input, differences
from protocols.sampling import SamplingParams

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """What the user asked for."""

    models: tuple[str, ...]
    """The first decides the task, unless ``run_dir`` is given; others are compared with it."""
    run_dir: Path | None
    step: int | None
    num_prompts: int
    samples_per_prompt: int
    temperature: float | None
    max_new_tokens: int | None
    is_greedy_too: bool
    device: str
    threads: int
    as_json: bool
    verbose: bool


@dataclass(frozen=True, slots=True)
class _Model:
    label: str
    trained: CheckpointSource | None
    """None for a plain folder."""
    folder: Path | None
    """None for the model that the run began with."""


def run_eval(options: EvalOptions) -> None:
    """Do it.

    Raises:
        UsageError: there is no such model or run.
        SwarmError: something failed.
    """
    configure_logging(verbose=False, as_json=False)
    run = _run(options)
    with ExitStack() as stack:
        models = [_model(name, run, stack, step=options.step) for name in options.models]
        labels = [model.label for model in models]
        if len(set(labels)) < len(labels):
            raise UsageError(f"the same model is named twice: {', '.join(labels)}")
        results = trio.run(partial(_evaluate_all, options, run, models))
    if options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(as_json(run, results)), indent=2))
    else:
        click.echo(as_table(run, results, width=_width()))


def _width() -> int:
    """Return the width of the terminal, or what is wide enough where there is none."""
    return get_terminal_size((sys.maxsize, 24)).columns


def _run(options: EvalOptions) -> RunSource:
    if options.run_dir is not None:
        return read_run_source(options.run_dir)
    for name in options.models:
        path = Path(name)
        if (path / RunDir.RUN).is_file():
            return read_run_source(path)
        if name != BASE and not is_model_folder(path):
            return find_checkpoint(path, step=None).run
    raise UsageError("which run's task is to be done? Name a run or a checkpoint, or give --run")


def _model(name: str, run: RunSource, stack: ExitStack, *, step: int | None) -> _Model:
    if name == BASE:
        return _Model(f"base ({Path(run.config.model.path).name})", None, None)
    path = Path(name)
    if is_model_folder(path):
        return _Model(path.name, None, path.absolute())
    is_run = (path / RunDir.RUN).is_file()
    # Until all are evaluated, which takes long.
    holding = hold_checkpoint(
        path, step=step if is_run else None, elsewhere=Path(tempfile.gettempdir())
    )
    trained = stack.enter_context(holding)
    return _Model(trained.label, trained, None)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for the length of the context; of one that fails, the logs stay.

    The error names them.
    """
    folder = Path(tempfile.mkdtemp(prefix="echo2-eval-"))
    try:
        yield folder
    except Exception:
        for inner in folder.iterdir():
            if inner.is_dir():
                rmtree(inner, ignore_errors=True)
        raise
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    rmtree(folder, ignore_errors=True)


async def _evaluate_all(
    options: EvalOptions, run: RunSource, models: Sequence[_Model]
) -> list[Rewards]:
    config = run.config
    base = await prepare_model(config.model.path)
    results = []
    with scratch_folder() as scratch:
        async with open_scorer(
            config.task,
            base,
            seed=config.run.seed,
            log_path=scratch / "scorer.log",
            held_out_from=num_excluded(config),
            num_processes=1,
        ) as scorer:
            _tell_changes(run, scorer.opened.inputs)
            prompts = await draw_held_out(
                scorer, options.num_prompts, num_known=scorer.opened.num_prompts
            )
            plan = _plan(options, config, scorer)
            per_prompt = plan.samples_per_prompt + plan.is_greedy_too
            progress = ProgressLine(
                "completions",
                total=len(models) * len(prompts) * per_prompt,
                now_s=trio.current_time,
            )
            async with open_evaluation_engine(
                device=options.device,
                threads=options.threads,
                log_path=scratch / "engine.log",
            ) as engine:
                for number, model in enumerate(models):
                    progress.say(f"evaluating {model.label}")
                    scratch_model = scratch / f"model-{number}"
                    folder = await _folder(
                        model, base, config, scratch_model, shows_tracebacks=options.verbose
                    )
                    policy = PolicyFolder(model.label, folder, folder)
                    results.append(
                        await evaluate_policy(
                            policy,
                            prompts,
                            plan,
                            engine=engine,
                            scorer=scorer,
                            on_done=progress.add,
                        )
                    )
            progress.end()
    return results


def _tell_changes(run: RunSource, inputs: Iterable[Input]) -> None:
    """Say if what is evaluated on is not what the run was trained with."""
    recorded = read_inputs(run.run_dir.inputs)
    before = recorded.of_table("task") if recorded else ()
    for words in differences(before, inputs) if before else ():
        log.warning("inputs.changed", what=words, why="since the run began: it is evaluated on now")


def _plan(options: EvalOptions, config: LearnerConfig, scorer: ProcessScorer) -> EvaluationPlan:
    rollouts = config.rollouts
    return EvaluationPlan(
        samples_per_prompt=options.samples_per_prompt,
        sampling=SamplingParams(
            temperature=options.temperature or rollouts.temperature,
            max_new_tokens=options.max_new_tokens or rollouts.max_new_tokens,
            stop_token_ids=scorer.opened.stop_token_ids,
        ),
        seed=config.run.seed,
        is_greedy_too=options.is_greedy_too,
    )


async def _folder(
    model: _Model, base: Path, config: LearnerConfig, scratch: Path, *, shows_tracebacks: bool
) -> Path:
    """Return a folder to load the model from."""
    if model.trained is None:
        return model.folder or base
    # In the type in which nodes have it.
    dtype = config.trainer.publish_dtype
    await export_checkpoint(
        model.trained,
        scratch,
        dtype=dtype,
        on_progress=lambda _: None,
        shows_tracebacks=shows_tracebacks,
    )
    return scratch
