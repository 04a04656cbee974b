"""A verifier that is any Python function, with prompts from a file or another function."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from echo2swarm.system.errors import ConfigError
from echo2swarm.text.suggest import suggest
from learner.tasks.base import PromptText, TaskOptions, Turn
from learner.tasks.inputs import Input, code_inputs
from learner.tasks.locating import line_of
from learner.tasks.rows import Rows, content_of, read_rows
from learner.tasks.splitting import EpochOrder, split

FunctionName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z",
        description='"module:function", such as "haiku:score"',
    ),
]

Score = Callable[[str, Mapping[str, Any]], float]
"""``score(completion, item)``: the reward, a finite number; the prompt was made from ``item``."""
MakePrompt = Callable[[int, int], str | Mapping[str, Any]]
"""``make_prompt(index, seed)``: a prompt, or an item with one under "prompt".

For the same arguments always the same."""


class Options(TaskOptions, frozen=True, kw_only=True):
    """Your own verifier: any Python function."""

    kind: Literal["function"] = "function"
    score: FunctionName
    """"module:function"; called as score(completion, item), returns the reward."""
    folder: str = "."
    """Where Python finds the module, unless it is installed."""
    make_prompt: FunctionName | None = None
    """"module:function"; called as make_prompt(index, seed), returns the item of that number: a
    prompt, or a table with it in prompt_field."""
    path: str | None = None
    """File of JSON lines with the items, in place of make_prompt."""
    prompt_field: str = "prompt"
    """Field of an item with its prompt: text, or a list of {role, content} for a chat."""
    stop: tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=100)], ...] = ()
    """Completions end at these texts."""

    path_keys: ClassVar[tuple[str, ...]] = ("folder", "path")


class FunctionTask:
    """Items from a function or a file, scored by a function."""

    def __init__(
        self,
        options: Options,
        *,
        score: Score,
        item: Callable[[int], Mapping[str, Any]],
        make: Callable[..., Any] | None = None,
    ) -> None:
        self._make = make or item
        self._options = options
        self._score = score
        self._item = item
        self._sources: tuple[Input, ...] = ()
        self._field = options.prompt_field
        self.num_prompts: int | None = None
        self.description = f"scored by {options.score}"
        self.stop = options.stop

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The verifier's source, and the file of items."""
        names = [self._options.score, self._options.make_prompt or self._options.score]
        modules = {name.partition(":")[0] for name in names}
        return (*self._sources, *code_inputs("task.score", modules, self._options.folder))

    def prompt(self, index: int) -> PromptText:
        """Return the prompt of an item."""
        item = self._item(index)
        if self._field not in item:
            raise ConfigError(
                f'prompt {index} has no field "{self._field}" (task.prompt_field)'
                f"{suggest(self._field, item)}"
            )
        prompt = item[self._field]
        if isinstance(prompt, str):
            return prompt
        try:
            return msgspec.convert(prompt, tuple[Turn, ...])
        except msgspec.ValidationError as exc:
            raise ConfigError(
                f"prompt {index} is neither text nor a list of {{role, content}}: {exc}"
            ) from None

    def where(self, _index: int, error: BaseException | None) -> str:
        """Return the line of make_prompt that an error comes from."""
        return "" if error is None else line_of(error, self._make)

    def score(self, index: int, completion: str) -> float:
        """Return what the function gives."""
        return float(self._score(completion, self._item(index)))


def open_task(options: Options, *, seed: int) -> FunctionTask:
    """Import the functions and make the task ready."""
    if (options.make_prompt is None) == (options.path is None):
        raise ConfigError('task.kind = "function" needs either task.make_prompt or task.path')
    if options.folder not in sys.path:
        sys.path.insert(0, options.folder)
    score = _import(options.score, key="task.score")
    if options.make_prompt is not None:
        make_prompt: MakePrompt = _import(options.make_prompt, key="task.make_prompt")

        def made(index: int) -> Mapping[str, Any]:
            item = make_prompt(index, seed)
            return {options.prompt_field: item} if isinstance(item, str) else item

        return FunctionTask(options, score=score, item=made, make=make_prompt)
    assert options.path is not None  # noqa: S101  # for the type checker; checked above
    rows = read_rows(options.path)
    prompts = [row.prompt(options.prompt_field, key="task.prompt_field") for row in rows.rows]
    contents = [content_of(prompt) for prompt in prompts]
    found = split(contents, share=options.held_out_share, by=options.held_out_by)
    return RowsTask(options, score=score, rows=rows, order=EpochOrder(found, seed=seed))


class RowsTask(FunctionTask):
    """Items from a file."""

    def __init__(self, options: Options, *, score: Score, rows: Rows, order: EpochOrder) -> None:
        super().__init__(options, score=score, item=lambda index: rows.rows[order[index]].fields)
        self._rows, self._order = rows, order
        self._sources = (rows.source,)
        self.num_prompts = len(order)

    def where(self, index: int, _error: BaseException | None) -> str:
        """Return the file and line of an item."""
        return self._rows.rows[self._order[index]].where

    def held_out(self) -> "RowsTask":
        """Return the task of the items that are never trained on."""
        order = self._order.held_out()
        return RowsTask(self._options, score=self._score, rows=self._rows, order=order)


def _import(name: str, *, key: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and f"{module_name}.".startswith(f"{exc.name}."):
            raise ConfigError(
                f'{key}: no module "{module_name}" in task.folder or among the installed packages'
            ) from None
        raise
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [name for name in vars(module) if callable(getattr(module, name))]
        raise ConfigError(
            f'{key}: module {module_name} has no function "{function_name}"'
            f"{suggest(function_name, names)}"
        )
    return function  # type: ignore[no-any-return]  # whatever the user wrote
