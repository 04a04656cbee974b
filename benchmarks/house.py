"""How fast the code reads: layout, names and sizes, measured from the sources.

``python -m benchmarks.house`` reads the four packages as text, runs nothing of them, and exits
with 1 where the code is harder to read than its marks allow:

- *Loose modules*: modules that lie beside sub-folders, so that a reader looks in two places.
- *Circles of folders*: folders that import each other; none can be read before the others. A
  module at the top of a package is a unit of its own: it is an entry point that imports all.
- *Names*: a public class or function name that is defined in more than one module.
- *Sizes*: modules over 400 lines, functions over 60, lines of the product.
- *Walks*: the number of files on each walk of ``docs/tour.md``.
- *Polling*: loops that wait for something by looking again and again.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import Mark, Outcome, finish

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("protocols", "echo2swarm", "node", "learner")
MAX_LOOSE: Final = 15
MAX_MODULE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60
MAX_PRODUCT_LINES: Final = 55_500
MAX_POLLING: Final = 1
WALKS: Final = {"a": 22, "b": 15, "c": 13, "d": 7, "e": 9, "f": 8}
"""The most files on each walk of the tour."""

SHARED_NAMES: Final = {
    "main": "the entry point of a program or child process",
    "open_task": "the function that a task module offers to the registry",
    "Options": "the options table that a task module offers to the registry",
    "check_prompts": "the same check, for the engine of its module",
    "decode": "the overloads of one function",
    "status": "the command of that name, of two programs",
}
"""Names that several modules may define, and why."""

LONG_FUNCTIONS: Final[Mapping[str, str]] = {
    "learner/trainer/batch.py:make_batch": "one pass that fills parallel arrays",
}
"""Functions that may be longer than the limit, and why."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source file."""

    path: str
    """Relative to the root, with slashes."""
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        """The folder that it is in."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The dotted name by which it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def num_lines(self) -> int:
        """Lines in the file."""
        return self.text.count("\n")


def modules_of(root: Path) -> list[Module]:
    """Return every module of the product."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(Module(path.relative_to(root).as_posix(), text, ast.parse(text)))
    return found


def loose_modules(modules: Iterable[Module]) -> dict[str, int]:
    """Return the number of modules that lie beside sub-folders, by folder."""
    counts: dict[str, int] = defaultdict(int)
    with_folders = set()
    for module in modules:
        parent = module.folder.rpartition("/")[0]
        while parent:
            with_folders.add(parent)
            parent = parent.rpartition("/")[0]
        if not module.path.endswith("/__init__.py"):
            counts[module.folder] += 1
    return {folder: counts[folder] for folder in sorted(with_folders)}


def _imports(module: Module, known: Mapping[str, Module]) -> Iterator[Module]:
    for node in ast.walk(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name in known and known[name] is not module:
                yield known[name]


def _unit(module: Module) -> str:
    """Return the folder of a module, or the module itself at the top of a package."""
    return module.folder if "/" in module.folder else module.path


def circles(modules: Iterable[Module]) -> list[frozenset[str]]:
    """Return the sets of folders that import each other."""
    known = {module.name: module for module in modules}
    graph: dict[str, set[str]] = defaultdict(set)
    for module in known.values():
        if module.path.endswith("/__init__.py"):
            continue
        for imported in _imports(module, known):
            if imported.path.endswith("/__init__.py"):
                continue
            if _unit(imported) != _unit(module):
                graph[_unit(module)].add(_unit(imported))
    return [group for group in _components(graph) if len(group) > 1]


def _components(graph: Mapping[str, set[str]]) -> Iterator[frozenset[str]]:
    """Yield the strongly connected components: what reaches each other."""
    reached = {start: _reachable(start, graph) for start in graph}
    seen: set[str] = set()
    for start in sorted(graph):
        if start in seen:
            continue
        group = {other for other in reached[start] if start in reached.get(other, ())} | {start}
        seen |= group
        yield frozenset(group)


def _reachable(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        for following in graph.get(pending.pop(), ()):
            if following not in found:
                found.add(following)
                pending.append(following)
    return found


def shared_names(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Return the public names that more than one module defines, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        names = {
            node.name
            for node in module.tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
        }
        for name in names:
            places[name].append(module.path)
    return {
        name: paths
        for name, paths in sorted(places.items())
        if len(paths) > 1 and name not in SHARED_NAMES
    }


def long_functions(modules: Iterable[Module]) -> list[tuple[str, int]]:
    """Return the functions over the limit, with their lines."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                name = f"{module.path}:{node.name}"
                if num_lines > MAX_FUNCTION_LINES and name not in LONG_FUNCTIONS:
                    found.append((name, num_lines))
    return sorted(found, key=lambda entry: -entry[1])


def walk_files(tour: str) -> dict[str, list[str]]:
    """Return the files on each walk of the tour, each once, in their order."""
    walks: dict[str, list[str]] = {}
    for section in re.split(r"^## ", tour, flags=re.M)[1:]:
        letter = section[0].lower()
        if section[1:2] == "." and letter in WALKS:
            files = re.findall(r"`([\w/]+\.py)(?::[\w.]+)?`", section)
            walks[letter] = list(dict.fromkeys(files))
    return walks


def polling(modules: Iterable[Module]) -> list[str]:
    """Return the places that wait by looking again and again."""
    return [
        f"{module.path}:{number}"
        for module in modules
        for number, line in enumerate(module.text.splitlines(), 1)
        if "noqa: ASYNC110" in line
    ]


def measure(root: Path = ROOT) -> Outcome:
    """Return what the sources under ``root`` show."""
    modules = modules_of(root)
    loose = loose_modules(modules)
    rings = circles(modules)
    names = shared_names(modules)
    large = [(m.path, m.num_lines) for m in modules if m.num_lines > MAX_MODULE_LINES]
    long = long_functions(modules)
    tour = root / "docs" / "tour.md"
    walks = walk_files(tour.read_text(encoding="utf-8")) if tour.exists() else {}
    polls = polling(modules)
    num_lines = sum(module.num_lines for module in modules)
    rows: list[tuple[str | float, ...]] = []
    rows += [("circle of folders", " <-> ".join(sorted(ring))) for ring in rings]
    rows += [("name of several things", f"{name}: {', '.join(p)}") for name, p in names.items()]
    rows += [("long module", f"{path}: {lines} lines") for path, lines in large]
    rows += [("long function", f"{name}: {lines} lines") for name, lines in long]
    rows += [("polling", place) for place in polls]
    rows += [("most loose modules", f"{max(loose, key=lambda f: loose[f])}: {max(loose.values())}")]
    rows += [(f"walk {letter}", f"{len(files)} files") for letter, files in sorted(walks.items())]
    marks = [
        Mark(name="loose modules in a folder", value=max(loose.values()), at_most=MAX_LOOSE),
        Mark(name="circles of folders", value=len(rings), at_most=0),
        Mark(name="names of several things", value=len(names), at_most=0),
        Mark(name="modules over 400 lines", value=len(large), at_most=0),
        Mark(name="functions over 60 lines", value=len(long), at_most=0),
        Mark(name="lines of the product", value=num_lines, at_most=MAX_PRODUCT_LINES),
        Mark(name="loops that poll", value=len(polls), at_most=MAX_POLLING),
        *(
            Mark(
                name=f"files on walk {letter}",
                value=len(walks.get(letter, ())),
                at_least=1,
                at_most=most,
            )
            for letter, most in WALKS.items()
        ),
    ]
    return Outcome(
        name="house",
        what="Layout, names and sizes of the four packages, from their sources.",
        columns=("what", "where"),
        rows=tuple(rows),
        marks=tuple(marks),
        figures={
            "num_lines": num_lines,
            "loose": loose,
            "circles": [sorted(ring) for ring in rings],
            "shared_names": names,
            "large_modules": dict(large),
            "long_functions": dict(long),
            "walks": walks,
            "polling": polls,
        },
    )


def main() -> int:
    """Measure the checkout, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    arguments = parser.parse_args()
    return finish(measure(), json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
