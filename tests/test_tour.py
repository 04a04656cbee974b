"""The tour of the sources leads to what is there, and each walk is as short as it should be."""

import ast
import re
from collections.abc import Iterator

import pytest

from benchmarks.house import WALKS, walk_files
from tests.test_packaging import ROOT

TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r"`([\w/]+\.py(?::[\w.]+)?)`", TOUR)))


def definitions(path: str) -> set[str]:
    """Return the names of the functions, classes and methods of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return set(_named(tree, ""))


def _named(parent: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _named(node, f"{node.name}.")


@pytest.mark.parametrize("link", LINKS)
def test_every_stop_of_the_tour_exists(link: str) -> None:
    path, _, name = link.partition(":")

    assert (ROOT / path).is_file()
    assert not name or name in definitions(path), f"{path} defines no {name}"


@pytest.mark.parametrize("letter", WALKS)
def test_a_walk_passes_through_few_files(letter: str) -> None:
    assert 1 <= len(walk_files(TOUR)[letter]) <= WALKS[letter]
