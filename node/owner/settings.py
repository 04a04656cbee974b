"""What the owner may set, by option at the start and with ``echo2-node set`` while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from echo2swarm.system.errors import UsageError
from echo2swarm.text.suggest import suggest
from echo2swarm.weights.transfer.rate_limit import bytes_per_s_of
from node.owner.hours import Hours, format_hours, parse_hours

_GB: Final = 1e9
BOUNDS: Final = {
    "upload-mbit": (0.01, 1e6),
    "download-mbit": (0.01, 1e6),
    "power-watts": (1.0, 1e4),
    "disk-gb": (0.001, 1e6),
}
"""Least and most of the numbers, those of the options of ``join``."""
_MBIT_BYTES: Final = 125_000
_NONE: Final = "none"
_YES: Final = frozenset({"yes", "true", "on", "1"})
_NO: Final = frozenset({"no", "false", "off", "0"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSettings:
    """The owner's limits."""

    upload_bytes_per_s: float | None = None
    """Most to upload of weights; None for most of what is measured."""
    download_bytes_per_s: float | None = None
    """Most to download of weights; None for all that the line carries."""
    hours: Hours = ()
    pause_on_gpu_use: bool = False
    relay_while_paused: bool = False
    power_watts: float | None = None
    disk_bytes: int | None = None
    """Most that weights may take; None for what the run needs."""


def change_settings(settings: OwnerSettings, changes: Mapping[str, str]) -> OwnerSettings:
    """Return the settings with changes that were typed, as ``upload-mbit=5``.

    Raises:
        UsageError: naming what is unknown, or no value; nothing has changed then.
    """
    for name, value in changes.items():
        settings = _changed(settings, name, value.strip())
    return settings


def describe_settings(settings: OwnerSettings) -> dict[str, str]:
    """Return what is set, as :func:`change_settings` reads it."""
    disk = settings.disk_bytes
    return {
        "upload-mbit": _mbit(settings.upload_bytes_per_s),
        "download-mbit": _mbit(settings.download_bytes_per_s),
        "hours": format_hours(settings.hours),
        "pause-on-gpu-use": _yes(settings.pause_on_gpu_use),
        "relay-while-paused": _yes(settings.relay_while_paused),
        "power-watts": _NONE if settings.power_watts is None else f"{settings.power_watts:g}",
        "disk-gb": _NONE if disk is None else f"{disk / _GB:g}",
    }


def _changed(settings: OwnerSettings, name: str, value: str) -> OwnerSettings:  # noqa: PLR0911
    match name:
        case "upload-mbit":
            return replace(settings, upload_bytes_per_s=bytes_per_s_of(_number(name, value)))
        case "download-mbit":
            return replace(settings, download_bytes_per_s=bytes_per_s_of(_number(name, value)))
        case "hours":
            return replace(settings, hours=parse_hours(value))
        case "pause-on-gpu-use":
            return replace(settings, pause_on_gpu_use=_flag(name, value))
        case "relay-while-paused":
            return replace(settings, relay_while_paused=_flag(name, value))
        case "power-watts":
            watts = _number(name, value)
            if watts is None:
                raise UsageError("power-watts=none: set the GPU's usual cap as a number instead")
            return replace(settings, power_watts=watts)
        case "disk-gb":
            number = _number(name, value)
            return replace(settings, disk_bytes=None if number is None else int(number * _GB))
        case _:
            known = describe_settings(settings)
            raise UsageError(f"no setting {name!r}{suggest(name, known)}")


def _number(name: str, value: str) -> float | None:
    if value == _NONE:
        return None
    least, most = BOUNDS[name]
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not least <= number <= most:
        raise UsageError(
            f"{name}={value}: a number from {least:g} to {most:,.0f} is wanted, or none"
        )
    return number


def _flag(name: str, value: str) -> bool:
    if value.lower() in _YES:
        return True
    if value.lower() in _NO:
        return False
    raise UsageError(f"{name}={value}: yes or no is wanted")


def _mbit(bytes_per_s: float | None) -> str:
    return _NONE if bytes_per_s is None else f"{bytes_per_s / _MBIT_BYTES:g}"


def _yes(is_set: bool) -> str:
    return "yes" if is_set else "no"
