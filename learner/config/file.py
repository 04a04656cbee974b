"""Where a run's configuration comes from: flags, environment, a TOML file, defaults.

The first of these that has a key wins. A flag is ``table.key=value``; the
environment's form of it is ``ECHO2_TABLE__KEY=value``. Whatever is wrong is one
:class:`~echo2swarm.system.errors.ConfigError` that names the key and where it stands.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import tomli_w

from echo2swarm.system.errors import ConfigError
from echo2swarm.system.text_files import why_not_utf8, without_mark
from echo2swarm.text.toml_tables import accepts, convert_table, table_type
from learner.config.checks import check_config
from learner.config.presets import PRESETS
from learner.config.tables import LearnerConfig, TrainerConfig
from learner.config.text import write_commented
from learner.tasks.base import TaskOptions
from learner.tasks.registry import BUILT_IN, check_table, find_kind

__all__ = ["load_config", "resolved", "write_commented"]

ENVIRONMENT_PREFIX: Final = "ECHO2_"
_SEPARATOR: Final = "__"
_OF_EVERY_TASK: Final = frozenset(TaskOptions.__struct_fields__) - {"kind"}
_DEFAULT_TASK: Final = "arithmetic"
_MAX_FILE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Layer:
    """Settings from one place."""

    name: str
    """For messages."""
    tables: Mapping[str, Any]
    folder: Path
    """Where relative paths in it start."""


def load_config(
    path: Path | None,
    overrides: Iterable[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    of_run: Path | None = None,
) -> LearnerConfig:
    """Return the configuration of a run, checked.

    Paths in the file are relative to its folder, others to the current one; in the result
    they are absolute.

    Args:
        path: the TOML file; None for none.
        overrides: ``table.key=value``, as given to ``--set``.
        environment: that of the process if None.
        of_run: what an older process resolved, if it is for the same run: what that could not
            say yet, since its software was older, stays as it was then.

    Raises:
        ConfigError: whatever is wrong with it.
    """
    here = Path.cwd()
    layers = [
        *_flag_layers(overrides, here),
        *_environment_layers(os.environ if environment is None else environment, here),
    ]
    file = None if path is None else _Layer(str(path), _read(path), path.resolve().parent)
    if file is not None:
        layers.append(file)
    if of_run is not None and of_run.exists():
        layers += _older_layers(of_run)
    return _resolve(layers, default_folder=here if file is None else file.folder)


def resolved(config: LearnerConfig) -> str:
    """Return a configuration as TOML with every key that has a value; :func:`load_config` reads it.

    What other keys decide, where they are left out, stands there as comments.
    """
    text = tomli_w.dumps(_without_none(msgspec.to_builtins(config)))
    for table, by, decided in (
        ("trainer", f'objective = "{config.trainer.objective}"', _by_objective(config.trainer)),
        ("eval", "[rollouts]", _by_rollouts(config)),
    ):
        if decided:
            header = f"[{table}]\n"
            comment = "".join(f"# {line}\n" for line in tomli_w.dumps(decided).splitlines())
            # Of a value with a line break, tomli_w writes that escaped: this is the header.
            start, found, end = f"\n{text}".partition(f"\n{header}")
            text = f"{start}{found}# Left out, and decided by {by}:\n{comment}{end}"[1:]
    return text


def _by_objective(trainer: TrainerConfig) -> dict[str, Any]:
    decided = asdict(PRESETS[trainer.objective])
    return {name: value for name, value in decided.items() if getattr(trainer, name) is None}


def _by_rollouts(config: LearnerConfig) -> dict[str, Any]:
    return {
        name: getattr(config.rollouts, name)
        for name in ("temperature", "max_new_tokens")
        if getattr(config.eval, name) is None
    }


def _resolve(layers: list[_Layer], *, default_folder: Path) -> LearnerConfig:
    """Merge ``layers``, the first of which is the strongest, and check the result."""
    for layer in layers:
        try:
            convert_table(layer.tables, LearnerConfig)
        except ConfigError as exc:
            raise ConfigError(f"{layer.name}: {exc}") from None
    kinds = [layer.tables["task"].get("kind") for layer in layers if "task" in layer.tables]
    kind = next((kind for kind in kinds if kind is not None), _DEFAULT_TASK)
    path_keys = find_kind(kind).Options.path_keys if kind in BUILT_IN else ()
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        tables = _without_other_task(layer.tables, kind)
        _merge(merged, _with_absolute_paths(tables, layer.folder, path_keys))
    try:
        merged["task"] = check_table({**merged.get("task", {}), "kind": kind})
        # Defaults may be paths too.
        merged = _with_absolute_paths(merged, default_folder, path_keys)
        return check_config(convert_table(merged, LearnerConfig))
    except ConfigError as exc:
        raise ConfigError(_with_origin(str(exc), layers)) from None


def _without_other_task(tables: Mapping[str, Any], kind: object) -> Mapping[str, Any]:
    """Return a layer's tables, less what only a kind of task knows that is not the one wanted."""
    task: Mapping[str, Any] = tables.get("task", {})
    if task.get("kind") in (None, kind):
        return tables
    return {**tables, "task": {key: task[key] for key in _OF_EVERY_TASK & task.keys()}}


def _with_origin(message: str, layers: Iterable[_Layer]) -> str:
    """Put in front of a message, which starts with a key, where that key was set."""
    names = message.partition(":")[0].split(".")
    for layer in layers:
        value: Any = layer.tables
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            return f"{layer.name}: {message}"
    return message


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        hint = "; `echo2-learner init` writes one" if isinstance(exc, FileNotFoundError) else ""
        raise ConfigError(f"{path}: can't be read: {exc.strerror}{hint}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: over {_MAX_FILE_BYTES} bytes; is it a configuration?")
    if why := why_not_utf8(data):
        raise ConfigError(f"{path}: {why}")
    try:
        return tomllib.loads(without_mark(data).decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text in UTF-8; save it in UTF-8") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None
    except RecursionError:
        raise ConfigError(f"{path}: too deeply nested") from None


def _older_layers(path: Path) -> Iterator[_Layer]:
    """Yield what was the rule before there were keys for it, for a run that was begun so."""
    try:
        task = _read(path).get("task", {})
    except ConfigError:
        return  # who compares the two says so
    if isinstance(task, dict) and task.get("kind") in BUILT_IN and "held_out_by" not in task:
        yield _Layer(f"{path} (older)", {"task": {"held_out_by": "position"}}, path.parent)


def _flag_layers(overrides: Iterable[str], folder: Path) -> list[_Layer]:
    """Return a layer per flag; of two for one key the later counts."""
    layers = []
    for override in overrides:
        key, found, text = override.partition("=")
        names = key.strip().split(".")
        if not found or len(names) < 2 or not all(names):
            tables = [table for table in _keys_of_tables() if _has_key(table, names[0])]
            meant = f"; did you mean {tables[0]}.{override}?" if found and len(tables) == 1 else ""
            raise ConfigError(f"{override!r}: a setting is written as table.key=value{meant}")
        layers.append(_single(f"--set {key.strip()}", names, text.strip(), folder))
    return layers[::-1]


def _environment_layers(environment: Mapping[str, str], folder: Path) -> list[_Layer]:
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and _SEPARATOR not in name:
            _refuse_one_underscore(name)
    return [
        _single(name, name.removeprefix(ENVIRONMENT_PREFIX).lower().split(_SEPARATOR), text, folder)
        for name, text in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIX) and _SEPARATOR in name
    ]


def _refuse_one_underscore(name: str) -> None:
    """Refuse a variable that would set a key if it had two underscores after the table."""
    table, _, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
    if _has_key(table, key):
        meant = f"{ENVIRONMENT_PREFIX}{table}{_SEPARATOR}{key}".upper()
        raise ConfigError(f"{name}: sets nothing; {meant}, with two underscores, is {table}.{key}")


def _has_key(table: str, key: str) -> bool:
    return key in _keys_of_tables().get(table, ())


def _keys_of_tables() -> dict[str, tuple[str, ...]]:
    """Return the keys of each table that are known before the task is."""
    return {
        field.name: (table_type(field.type) or TaskOptions).__struct_fields__
        for field in msgspec.structs.fields(LearnerConfig)
    }


def _single(where: str, names: list[str], text: str, folder: Path) -> _Layer:
    """Return one setting as nested tables."""
    value: Any = _value(names, text, where)
    for name in reversed(names):
        value = {name: value}
    return _Layer(where, value, folder)


def _value(names: list[str], text: str, where: str) -> object:
    """Return what ``text`` stands for: TOML, or itself where that is what the key takes."""
    try:
        value: object = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        if text[:1] in {"[", "{", '"', "'"}:
            raise ConfigError(f"{where}: {text!r} is not a valid TOML value") from None
        return text
    annotation = _annotation(names)
    if annotation is not None and not accepts(annotation, value) and accepts(annotation, text):
        return text  # a name that looks like a number
    return value


def _annotation(names: list[str]) -> object | None:
    """Return the type of a key, if it is known before the task is."""
    annotation: object = LearnerConfig
    for name in names:
        struct = table_type(annotation)
        fields = {f.name: f.type for f in msgspec.structs.fields(struct)} if struct else {}
        if name not in fields:
            return None
        annotation = fields[name]
    return annotation


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        inner = below.get(name)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            _merge(inner, value)
        else:
            below[name] = value


def _with_absolute_paths(
    tables: Mapping[str, Any], folder: Path, task_keys: Iterable[str]
) -> dict[str, Any]:
    result = {name: dict(v) if isinstance(v, Mapping) else v for name, v in tables.items()}
    task, model = result.get("task"), result.get("model")
    if isinstance(task, dict):
        for key in task_keys:
            if isinstance(task.get(key), str):
                task[key] = str(folder / _expanded(task[key], f"task.{key}"))
    if isinstance(model, dict) and isinstance(model.get("path"), str):
        model["path"] = _model_path(model["path"], folder)
    return result


def _model_path(path: str, folder: Path) -> str:
    """Return the absolute path of a folder; names of models as they are."""
    there = folder / _expanded(path, "model.path")
    is_path = path.startswith(("/", "./", "../", "~")) or (path != "embedded" and there.is_dir())
    return str(there) if is_path else path


def _expanded(path: str, key: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{key}: there is no home directory for {path}; set HOME, or give an absolute path"
        ) from None


def _without_none(value: object) -> Any:  # noqa: ANN401  # TOML has no null
    if isinstance(value, Mapping):
        return {name: _without_none(x) for name, x in value.items() if x is not None}
    if isinstance(value, list | tuple):
        return [_without_none(x) for x in value]
    return value
