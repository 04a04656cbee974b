"""The documentation tells the truth where a machine can check it."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from tests.test_packaging import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GROUPS = {
    "echo2-learner": ("learner.cli", "learner"),
    "echo2-node": ("node.cli", "node"),
    "swarm": ("echo2swarm.cli", "swarm"),
}
"""By command: the module and the click group in it."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


def shell_lines(page: Path) -> Iterator[str]:
    """Yield the lines of all shell blocks of a page, continued lines joined."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.M | re.S):
        if language in ("", "sh"):
            yield from block.replace("\\\n", " ").splitlines()


@pages
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())

    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


@pages
def test_commands_and_options_that_a_page_shows_exist(page: Path) -> None:
    for line in shell_lines(page):
        # What stands before a command are its environment variables.
        command = re.sub(r"^(\w+=\S+ )+", "", line)
        if command.partition(" ")[0] in GROUPS:
            check_command(shlex.split(command, comments=True))


def check_command(words: list[str]) -> None:
    module, name = GROUPS[words[0]]
    command = getattr(import_module(module), name)
    assert isinstance(command, click.Group)
    subcommand = command.commands[words[1]]
    known = {option for parameter in subcommand.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words[2:] if word.startswith("-") and word != "-"}
    assert used <= known | {"--help"}, f"{shlex.join(words)}: {used - known}"


@pages
def test_make_targets_that_a_page_shows_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    used = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(shell_lines(page))))

    assert used <= targets


@pages
def test_tests_and_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`((?:protocols|echo2swarm|node|learner|tests|scripts)/[\w./-]*)`", text)

    assert [n for n in re.findall(r"`(test_\w+)`", text) if f"def {n}(" not in tests] == []
    assert [n for n in named if not (ROOT / n).exists()] == []


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [requirement for group in groups for requirement in group]
    names = {re.split(r"[\[><=~ ]", requirement)[0] for requirement in requirements}
    explained = (ROOT / "docs" / "dependencies.md").read_text()

    assert [
        n for n in sorted(names - {"echo2swarm"}) if not re.search(rf"\b{n}\b", explained)
    ] == []


@pages
def test_a_page_is_plain_text_of_this_project(page: Path) -> None:
    text = page.read_text()

    assert text.startswith("# ") or page.parent.name == "newsfragments"
    assert text.endswith("\n")
    assert "\t" not in text
