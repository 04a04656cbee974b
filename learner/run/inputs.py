"""What a run depends on, by content: recorded when it begins, compared whenever it goes on.

``inputs.json`` in the run directory has the hashes of data files, of the verifier's source and
of the model, and the versions of packages that reward. A path says where these are, not what
they are: with other data under the same path, answers would be scored against the wrong rows.
"""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from echo2swarm.models.folder import asset_files, weight_files
from echo2swarm.system.errors import StoreError
from echo2swarm.system.files import sha256_of_file, write_atomically
from learner.tasks.inputs import ACCEPT, Input, changed_inputs, differences

MODEL_KEY: Final = "model.path"
_LARGE_BYTES: Final = 64 << 20
"""Files beyond this are not read again if size and time of change are as they were."""

log = structlog.get_logger()


class Recorded(msgspec.Struct, frozen=True):
    """``inputs.json``."""

    inputs: tuple[Input, ...] = ()
    stamps: dict[str, str] = msgspec.field(default_factory=dict)
    """Size and time of change of the model's large files, by their names."""

    def of_table(self, table: str) -> tuple[Input, ...]:
        """Return the inputs that one table of the configuration names."""
        return tuple(each for each in self.inputs if each.key.partition(".")[0] == table)


def read_inputs(path: Path) -> Recorded | None:
    """Return what was recorded; None if nothing was, as by older software.

    Raises:
        StoreError: the file is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recorded)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError(f"{path}: can't be read: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreError(
            f"{path} is damaged ({exc}); restore it, or delete it: what the run depends on is then "
            "recorded anew"
        ) from exc


def write_inputs(path: Path, recorded: Recorded) -> None:
    """Record what a run depends on."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(recorded), indent=1))


def model_inputs(folder: Path, before: Recorded | None) -> Recorded:
    """Return the files of a model: configuration, tokenizer, weights.

    Raises:
        StoreError: one can't be read.
    """
    known = {each.name: each.identity for each in before.of_table("model")} if before else {}
    inputs, stamps = [], {}
    for path in [*asset_files(folder), *weight_files(folder)]:
        try:
            stat = path.stat()
            stamp = f"{stat.st_size} bytes, {stat.st_mtime_ns}"
            is_known = before is not None and before.stamps.get(path.name) == stamp
            identity = known.get(path.name, "") if is_known else ""
            inputs.append(Input(MODEL_KEY, path.name, identity or sha256_of_file(path)))
        except OSError as exc:
            raise StoreError(f"{path}: can't be read: {exc.strerror}") from exc
        if stat.st_size > _LARGE_BYTES:
            stamps[path.name] = stamp
    return Recorded(tuple(inputs), stamps)


async def hold_to_inputs(
    path: Path, model_dir: Path, task_inputs: Iterable[Input], *, is_resumed: bool, accept: bool
) -> bool:
    """Compare what a run depends on with what it began with, and record what is not yet.

    Args:
        path: of ``inputs.json``.
        model_dir: the model's folder.
        task_inputs: what the scorer has read.
        is_resumed: whether the run was begun before.
        accept: take what has changed as it is now.

    Returns:
        Whether the task is another than before, which was accepted.

    Raises:
        ConfigError: something has changed; the message says what, and what to do.
        StoreError: something can't be read.
    """
    before = read_inputs(path) if is_resumed else None
    model = await trio.to_thread.run_sync(model_inputs, model_dir, before)
    now = Recorded((*task_inputs, *model.inputs), model.stamps)
    changed = {
        table: differences(before.of_table(table), now.of_table(table))
        for table in ("task", "model")
        if before is not None and before.of_table(table)
    }
    found = [words for table in changed.values() for words in table]
    if found and not accept:
        raise changed_inputs(found)
    for words in found:
        log.warning("inputs.changed", what=words, why=f"accepted by {ACCEPT}")
    if is_resumed and before is None:
        log.warning(
            "inputs.recorded",
            why="the run was begun by software that did not record what it depends on; whether "
            "data, verifier and model are those that it began with is not known",
        )
    if before != now:
        write_inputs(path, now)
    return bool(changed.get("task"))


def inherited(recorded: Recorded, *, same_task: bool, same_model: bool) -> Recorded:
    """Return what a fork depends on, so far as it has its tables from the run that is recorded."""
    kept = (*(recorded.of_table("task") if same_task else ()),)
    kept += recorded.of_table("model") if same_model else ()
    return Recorded(kept, recorded.stamps if same_model else {})


def changes_on_disk(recorded: Iterable[Input]) -> list[str]:
    """Return which files and packages of a task are not as recorded, running none of its code."""
    before = [each for each in recorded if each.key != MODEL_KEY]
    now = [msgspec.structs.replace(each, identity=_identity(each)) for each in before]
    return differences(before, [each for each in now if each.identity])


def _identity(recorded: Input) -> str:
    """Return what a file or package is now; empty if it is gone."""
    try:
        if Path(recorded.name).is_absolute():
            return sha256_of_file(Path(recorded.name))
        return version(recorded.name)
    except (OSError, PackageNotFoundError):
        return ""
