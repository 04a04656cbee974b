"""Whether what a configuration names is there: folders and files, and names of this machine."""

from pathlib import Path
from typing import Final

from echo2swarm.models.folder import check_model_folder
from echo2swarm.models.resolve import EMBEDDED, is_hub_id
from echo2swarm.network.own_addresses import look_up
from echo2swarm.system.errors import ConfigError, UsageError
from learner.config.tables import LearnerConfig
from learner.tasks.registry import BUILT_IN, find_kind

_FOLDER_KEY: Final = "folder"


def check_places(config: LearnerConfig) -> None:
    """Do nothing if what ``config`` names is there; what would be fetched is not asked for.

    Raises:
        ConfigError: something is not; the message starts with the key.
        NetworkError: names can't be looked up now.
    """
    try:
        look_up(config.swarm.advertise)
    except UsageError as exc:
        raise ConfigError(f"swarm.advertise: {exc}") from None
    path = config.model.path
    if Path(path).is_absolute() or not (path == EMBEDDED or is_hub_id(path)):
        try:
            check_model_folder(Path(path))
        except ConfigError as exc:
            raise ConfigError(f"model.path: {exc}") from None
    kind = config.task["kind"]
    for key in find_kind(kind).Options.path_keys if kind in BUILT_IN else ():
        named = config.task.get(key)
        if named is None:
            continue
        place = Path(named)
        if key == _FOLDER_KEY and not place.is_dir():
            raise ConfigError(f"task.{key}: no such folder: {place}")
        if key != _FOLDER_KEY and not place.is_file():
            raise ConfigError(f"task.{key}: no such file: {place}")
