"""What all messages have in common, found in the source."""

import ast
import re
from pathlib import Path

import pytest

from tests.test_docs import PAGES
from tests.test_packaging import ROOT

PACKAGES = ("protocols", "echo2swarm", "learner", "node")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
# A command to type, up to where something is filled in.
COMMAND = re.compile(
    r"(\becho2-(learner|node) \S|\bswarm (status|plan|simulate|report)\b|--(run|state)-dir )"
    r"[^;,()`\n]*$"
)


def unquoted(source: str) -> list[str]:
    """Return what is filled into commands and not quoted for the shell."""
    tree = ast.parse(source)
    quoted = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "quote(" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                what = ast.unparse(part.value)
                if COMMAND.search(text) and "quote(" not in what and what not in quoted:
                    found.append(what)
                text += "X"
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_command_that_is_suggested_can_be_pasted(path: Path) -> None:
    assert unquoted(path.read_text()) == []


def test_what_is_not_quoted_is_found() -> None:
    assert unquoted('f"next: echo2-learner serve --resume --run-dir {folder}"') == ["folder"]
    assert unquoted('f"{name}: --state-dir {n.state_dir}"') == ["n.state_dir"]
    assert unquoted('f"echo2-learner fork {shlex.quote(a)} --run-dir {b}"') == ["b"]
    assert unquoted('a = shlex.quote(b)\nf"swarm status --run {a}"') == []
    assert unquoted('f"run of echo2swarm {version}"') == []


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nobody_is_told_to_install_this_from_an_index(path: Path) -> None:
    found = re.findall(r"""install (?:--?\S+ )*["']?echo2swarm\b.*""", path.read_text())

    assert found == []
