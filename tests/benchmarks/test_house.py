"""The measures of how the code reads, on small trees made for the purpose."""

import ast
from pathlib import Path

import pytest

from benchmarks.house import (
    PACKAGES,
    ROOT,
    Module,
    circles,
    long_functions,
    loose_modules,
    measure,
    polling,
    shared_names,
    walk_files,
)


def module(path: str, text: str = "") -> Module:
    return Module(path, text, ast.parse(text))


def test_modules_beside_folders_are_loose_and_others_are_not() -> None:
    tree = [
        module("node/__init__.py"),
        module("node/app.py"),
        module("node/cli.py"),
        module("node/engine/__init__.py"),
        module("node/engine/base.py"),
    ]

    assert loose_modules(tree) == {"node": 2}


def test_folders_that_import_each_other_are_a_circle() -> None:
    tree = [
        module("node/a/x.py", "from node.b.y import thing"),
        module("node/b/y.py", "from node.a import z"),
        module("node/a/z.py"),
        module("node/c/w.py", "import node.a.z"),
    ]

    assert circles(tree) == [frozenset({"node/a", "node/b"})]


def test_a_module_at_the_top_is_no_part_of_a_circle_with_what_it_starts() -> None:
    tree = [
        module("node/cli.py", "from node.commands.join import join"),
        module("node/commands/join.py", "from node.app import run"),
        module("node/app.py"),
    ]

    assert circles(tree) == []


def test_a_name_that_two_modules_define_is_found_and_a_private_one_is_not() -> None:
    tree = [
        module("node/a.py", "class Batch: ...\ndef _help(): ..."),
        module("learner/b.py", "class Batch: ...\ndef _help(): ..."),
    ]

    assert shared_names(tree) == {"Batch": ["node/a.py", "learner/b.py"]}


@pytest.mark.parametrize(("num_lines", "is_found"), [(60, False), (61, True)])
def test_a_function_over_the_limit_is_found(num_lines: int, is_found: bool) -> None:
    text = "def f():\n" + "    x = 1\n" * (num_lines - 1)

    assert bool(long_functions([module("node/a.py", text)])) is is_found


def test_a_loop_that_polls_is_found_with_its_line() -> None:
    text = "a = 1\nwhile a:  # noqa: ASYNC110\n    pass\n"

    assert polling([module("node/a.py", text)]) == ["node/a.py:2"]


def test_files_of_a_walk_count_once() -> None:
    tour = (
        "# Tour\n\n## a. One\n\n`node/a.py:f`, `node/b.py`, `node/a.py:g`\n\n## Other\n\n`c.py`\n"
    )

    assert walk_files(tour) == {"a": ["node/a.py", "node/b.py"]}


@pytest.mark.parametrize(("num_lines", "is_large"), [(400, False), (401, True)])
def test_a_module_over_the_limit_is_found(tmp_path: Path, num_lines: int, is_large: bool) -> None:
    for package in PACKAGES:
        (tmp_path / package / "inside").mkdir(parents=True)
    (tmp_path / "node" / "inside" / "a.py").write_text("x = 1\n" * num_lines)

    found = measure(tmp_path).figures["large_modules"]

    assert found == ({"node/inside/a.py": num_lines} if is_large else {})


def test_every_figure_of_this_checkout_can_be_measured() -> None:
    found = measure(ROOT)

    assert found.figures["num_lines"] > 10_000
    assert len(found.marks) == 13
