"""A short run of the engine: with the run's model if that is here, else with a tiny one."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from echo2swarm.system.errors import StoreError, SwarmError
from echo2swarm.weights.store.library import HeldVersion, open_library
from node.doctor.synthetic import write_model
from node.engine.base import EngineReady, PolicyFiles
from node.engine.options import EngineOptions
from node.engine.process import engine_spec, open_engine
from node.rollouts.calibration import Calibration
from protocols.ids import PolicyVersion
from protocols.sampling import SamplingParams
from protocols.ticket import Ticket

MAX_DEATHS: Final = 2
"""The second one shows that the first was no accident."""
_LOG: Final = "engine.log"
TRIAL_S: Final = 120.0
"""Importing torch and loading a model included."""
_SAMPLING: Final = SamplingParams(1.0, 32, (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What came of a trial."""

    problem: str = ""
    tokens_per_s: float | None = None
    load_s: float = 0.0
    with_what: str = ""
    is_real: bool = False
    """Whether it was the run's own model: only then does the speed say anything."""


async def try_engine(
    kind: str, options: EngineOptions, *, state_dir: Path, ticket: Ticket | None
) -> EngineFacts:
    """Start the engine, load a model, and time it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held = await _held(state_dir, ticket)
        if held is not None:
            version, sampling = held.version, held.manifest.sampling
            files = PolicyFiles(version=version, weights_dir=held.weights, assets_dir=held.assets)
            with_what = f"version {version} of the run's model"
        else:
            write_model(folder)
            files = PolicyFiles(version=PolicyVersion(0), weights_dir=folder, assets_dir=folder)
            sampling, with_what = _SAMPLING, "a tiny model (the run's is not here yet)"
        try:
            with trio.fail_after(TRIAL_S):
                tokens_per_s, load_s = await _time(kind, options, files, sampling, folder)
        except trio.TooSlowError:
            return EngineFacts(problem=f"it took longer than {TRIAL_S:g} s", with_what=with_what)
        except SwarmError as exc:
            return EngineFacts(problem=_without_log(str(exc), folder), with_what=with_what)
        except BaseExceptionGroup as group:
            problem = _without_log(_problem_in(group), folder)
            return EngineFacts(problem=problem, with_what=with_what)
    if tokens_per_s is None:
        return EngineFacts(problem="it could not sample; see above", with_what=with_what)
    return EngineFacts(
        tokens_per_s=tokens_per_s, load_s=load_s, with_what=with_what, is_real=held is not None
    )


async def _time(
    kind: str, options: EngineOptions, files: PolicyFiles, sampling: SamplingParams, folder: Path
) -> tuple[float | None, float]:
    ready = trio.Event()
    async with open_engine(
        engine_spec(kind, options),
        log_path=folder / _LOG,
        max_deaths=MAX_DEATHS,
        on_event=lambda event: ready.set() if isinstance(event, EngineReady) else None,
    ) as engine:
        await ready.wait()
        load_s = await engine.load_policy(files)
        calibration = Calibration(engine, max_batch=options.max_batch)
        await calibration.run(sampling)
        return calibration.tokens_per_s, load_s


async def _held(state_dir: Path, ticket: Ticket | None) -> HeldVersion | None:
    """Return the newest version that is here whole; None if there is none, or a node has it."""
    if ticket is None:
        return None
    folder = state_dir / "runs" / ticket.run_id / "weights"
    if not folder.is_dir():
        return None
    try:
        async with open_library(
            folder, run=ticket.run, learner_key=ticket.learner_public_key
        ) as library:
            return library.newest
    except StoreError:
        return None


def _without_log(problem: str, folder: Path) -> str:
    """Return what is wrong, less the name of a log that will be gone by the time it is read."""
    return problem.replace(f"; its log: {folder / _LOG}", "")


def _problem_in(group: BaseExceptionGroup[BaseException]) -> str:
    """Return what the engine said; anything but our own errors goes on up."""
    ours, others = group.split(SwarmError)
    if others is not None or ours is None:
        raise group
    leaf: BaseException = ours
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return str(leaf)
