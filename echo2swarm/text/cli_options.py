"""Options of a command declared once: each is a typed field of a frozen dataclass.

The fields made by :func:`option` and :func:`argument` say how each is typed on the command line;
:func:`takes` gives a command these options and passes them as one value.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, Protocol

import click

_DECLARE: Final = "click"


class _Declare(Protocol):
    def __call__(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def option(*flags: str, **settings: Any) -> Any:  # noqa: ANN401 - as dataclasses.field and click
    """Return a field for an option; ``flags`` and ``settings`` are those of ``click.option``.

    Its default outside the command line is the one on it.
    """

    def declare(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return click.option(*flags, name, **settings)

    return _field(declare, default=settings.get("default", _implied_default(settings)))


def argument(**settings: Any) -> Any:  # noqa: ANN401 - as dataclasses.field and click
    """Return a field for a required argument, with the settings of ``click.argument``."""

    def declare(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return click.argument(name, **settings)

    return _field(declare, default=dataclasses.MISSING)


def _field(declare: _Declare, *, default: object) -> Any:  # noqa: ANN401 - as dataclasses.field
    metadata = {_DECLARE: declare}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(metadata=metadata, default=default)


def _implied_default(settings: dict[str, Any]) -> object:
    if settings.get("multiple"):
        return ()
    return False if settings.get("is_flag") else None


def takes(options: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that passes a command the dataclass ``options``, its last argument."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*args: Any, **typed: Any) -> Any:  # noqa: ANN401 - as click has it
            return command(*args, options(**typed))

        decorated: Callable[..., Any] = run
        for field in reversed(dataclasses.fields(options)):
            decorated = field.metadata[_DECLARE](field.name)(decorated)
        return decorated

    return decorate
