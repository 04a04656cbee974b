"""Any data set of the reasoning-gym library, scored as the library does."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Protocol, cast

import msgspec

from echo2swarm.system.errors import ConfigError
from echo2swarm.system.extras import install_extra
from echo2swarm.text.suggest import suggest
from learner.tasks.answers import extract
from learner.tasks.base import PromptText, seed_of
from learner.tasks.inputs import Input, package_input
from learner.tasks.prompting import Prompter, PromptOptions

_EPOCH: Final = 10_000
"""Problems made from one seed of the library. Small, since some data sets prepare them all."""
_SET_BY_US: Final = frozenset({"seed", "size"})


class Options(PromptOptions, frozen=True, kw_only=True):
    """Generated reasoning problems of over a hundred kinds; needs the package reasoning-gym."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: str = "chain_sum"
    """Name of the data set."""
    dataset_options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Its own options, such as {max_terms = 2}."""


class _Dataset(Protocol):
    """What we use of the library's data sets."""

    config: ClassVar[Any]

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float: ...


class ReasoningGym:
    """Problems without end: each epoch has a seed of its own."""

    num_prompts = None

    def __init__(self, options: Options, *, seed: int) -> None:
        self._options = options
        self.description = f"reasoning-gym: {options.dataset}"
        self.inputs: tuple[Input, ...] = tuple(package_input("task.dataset", "reasoning-gym"))
        # Two epochs, since prompts of the one are scored while the next begins.
        self._dataset = lru_cache(maxsize=2)(
            lambda epoch: _open(options, seed=seed_of("reasoning-gym", seed, epoch))
        )
        # Examples are the same whatever the seed, so that runs can be compared.
        shots = _open(options, seed=seed_of("reasoning-gym examples"))
        num_shots = options.num_shots if options.template == "few_shot" else 0
        self._prompter = Prompter(options, [_fields(shots[i]) for i in range(num_shots)])
        self.stop = self._prompter.stop

    def prompt(self, index: int) -> PromptText:
        """Return the data set's question as a prompt."""
        _, entry = self._entry(index)
        return self._prompter.render(_fields(entry))

    def score(self, index: int, completion: str) -> float:
        """Return what the data set's own verifier gives for the answer in ``completion``."""
        dataset, entry = self._entry(index)
        answer = extract(completion, self._options.answer_in)
        return float(dataset.score_answer(answer, entry))

    def _entry(self, index: int) -> tuple[_Dataset, dict[str, Any]]:
        epoch, place = divmod(index, _EPOCH)
        dataset = self._dataset(epoch)
        return dataset, dataset[place]


def open_task(options: Options, *, seed: int) -> ReasoningGym:
    """Make the task ready."""
    return ReasoningGym(options, seed=seed)


def _fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an example may show: question and answer win over the data's details."""
    return {**entry["metadata"], "question": entry["question"], "answer": entry["answer"]}


def _open(options: Options, *, seed: int) -> _Dataset:
    try:
        # A second to import, and not installed everywhere.
        from reasoning_gym.factory import DATASETS, create_dataset  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f'task.kind = "reasoning_gym" needs a package; {install_extra("learner")}'
        ) from None
    if options.dataset not in DATASETS:
        raise ConfigError(
            f'task.dataset: reasoning-gym has no "{options.dataset}"'
            f"{suggest(options.dataset, DATASETS)}"
        )
    _, config = DATASETS[options.dataset]
    known = {field.name for field in dataclasses.fields(config)} - _SET_BY_US
    for name in options.dataset_options:
        if name not in known:
            raise ConfigError(
                f'task.dataset_options: {options.dataset} has no "{name}"{suggest(name, known)}'
            )
    try:
        dataset = create_dataset(options.dataset, **options.dataset_options, seed=seed, size=_EPOCH)
    except (AssertionError, TypeError, ValueError) as exc:
        raise ConfigError(f"task.dataset_options: {options.dataset}: {exc}") from exc
    return cast("_Dataset", dataset)
