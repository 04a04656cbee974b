"""What a task depends on beyond its options: files and packages, known by what is in them."""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from echo2swarm.system.errors import ConfigError
from protocols.codec import Message

ACCEPT: Final = "--accept-changed-inputs"
"""The option with which a run goes on though they have changed."""
_OURS: Final = frozenset({"echo2swarm", "learner", "node", "protocols"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


class Input(Message, frozen=True):
    """One thing that prompts or rewards depend on."""

    key: str
    """The option that names it."""
    name: str
    """Path of the file, or name of the package."""
    identity: str
    """What tells its content from any other: a SHA-256, or a version."""


@runtime_checkable
class HasInputs(Protocol):
    """A task that says what it depends on."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The files and packages that its prompts and rewards follow from."""
        ...


def package_input(key: str, *names: str) -> Iterator[Input]:
    """Yield those of the packages of these names that are installed."""
    for name in names:
        try:
            yield Input(key, name, version(name))
        except PackageNotFoundError:
            continue


def code_inputs(key: str, modules: Iterable[str], folder: str) -> Iterator[Input]:
    """Yield the source files of a verifier: its modules, and what they import from ``folder``.

    For a module of an installed package, also the package.
    """
    wanted = set(modules)
    root = Path(folder).resolve()
    packages = packages_distributions()
    for name in sorted({part for module in wanted for part in packages.get(_top(module), ())}):
        yield from package_input(key, name)
    for name, module in sorted(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if not isinstance(source, str) or not source.endswith(".py"):
            continue
        path = Path(source)
        if name in wanted or (_top(name) not in _OURS and _is_inside(path, root)):
            try:
                identity = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                continue  # imported from an archive, or deleted since
            yield Input(key, str(path), identity)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_inside(path: Path, root: Path) -> bool:
    path = path.resolve()
    return path.is_relative_to(root) and not _INSTALLED & set(path.relative_to(root).parts)


def differences(before: Iterable[Input], now: Iterable[Input]) -> list[str]:
    """Return what is not as it was, in words; nothing if all is."""
    old, new = _by_name(before), _by_name(now)
    found = []
    for key, name in sorted({*old, *new}):
        was, is_ = old.get((key, name)), new.get((key, name))
        if was == is_:
            continue
        if was is None:
            how = "is new"
        elif is_ is None:
            how = "is gone"
        else:
            how = f"has changed ({_short(was)} then, {_short(is_)} now)"
        found.append(f"{key}: {name} {how}")
    return found


def changed_inputs(found: list[str], *, accept: str = ACCEPT) -> ConfigError:
    """Return the error for what is not as it was when the run began."""
    others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return ConfigError(
        f"{found[0]}{others}: a run goes on with what it began with; restore that, or take what "
        f"there is now with {accept}, or begin a new run"
    )


def _by_name(inputs: Iterable[Input]) -> dict[tuple[str, str], str]:
    return {(each.key, each.name): each.identity for each in inputs}


def _short(identity: str) -> str:
    return f"SHA-256 {identity[:12]}" if len(identity) == 64 else identity
