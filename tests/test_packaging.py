"""What a user installs: one wheel, four packages, three commands that answer at once."""

import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import pytest

import echo2swarm

ROOT = Path(__file__).parents[1]
PACKAGES = ("echo2swarm", "learner", "node", "protocols")
HEAVY = frozenset({"torch", "transformers", "vllm", "libp2p", "numpy", "matplotlib", "trio"})
"""What ``--help`` must not wait for."""


def build(target: str, folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    folder = tmp_path_factory.mktemp("dist")
    build("wheel", folder)
    (path,) = folder.glob("*.whl")
    return zipfile.Path(path)


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    names = {entry.name for entry in wheel.iterdir()}

    metadata = {name for name in names if name.endswith(".dist-info")}
    assert names - metadata == set(PACKAGES)
    assert len(metadata) == 1


def test_the_wheel_holds_every_module_of_the_packages(wheel: zipfile.Path) -> None:
    in_wheel = {name for name in wheel.root.namelist() if name.endswith(".py")}
    in_checkout = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.py")
    }

    assert in_wheel == in_checkout


def test_what_only_tests_and_benchmarks_use_is_not_in_the_wheel(wheel: zipfile.Path) -> None:
    parts = {part for name in wheel.root.namelist() for part in Path(name).parts}

    assert not parts & {"tests", "benchmarks", "examples", "docs", "fakes", "mesh_simulation.py"}


def test_the_wheel_holds_the_licence(wheel: zipfile.Path) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel.root.namelist())


def test_the_sdist_holds_what_the_wheel_is_made_of(tmp_path: Path) -> None:
    build("sdist", tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    in_checkout = {
        path.relative_to(ROOT).as_posix()
        for name in (*PACKAGES, "tests")
        for path in (ROOT / name).rglob("*.py")
    }
    assert in_checkout <= names
    assert {"pyproject.toml", "constraints.txt", "LICENSE", "docs/changelog.md"} <= names


@pytest.mark.processes
def test_an_installed_wheel_has_three_commands_that_answer(
    wheel: zipfile.Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    built = str(wheel.root.filename)
    subprocess.run([*pip, "--no-index", built], check=True, cwd=tmp_path)
    # What the wheel depends on is already here; the checkout itself must not be found.
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        is_checkout = "echo2swarm" in path.name or path.suffix == ".pth"
        if not is_checkout and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    told = {
        command: subprocess.run(
            [tmp_path / "env" / "bin" / words[0], *words[1:]],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        ).stdout
        for command in ("echo2-node --version", "echo2-learner init -", "swarm --help")
        for words in (command.split(),)
    }
    where = subprocess.run(
        [python, "-c", "import learner, node; print(learner.__file__, node.__file__)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    ).stdout.split()

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in told["echo2-node --version"]
    assert "[task]" in told["echo2-learner init -"]
    assert "status" in told["swarm --help"]
    assert all(Path(path).is_relative_to(tmp_path) for path in where)


def entry_points() -> list[EntryPoint]:
    return sorted(distribution("echo2swarm").entry_points, key=lambda e: e.name)


def test_there_are_three_commands() -> None:
    assert [(e.name, e.value) for e in entry_points()] == [
        ("echo2-learner", "learner.cli:main"),
        ("echo2-node", "node.cli:main"),
        ("swarm", "echo2swarm.cli:main"),
    ]


@pytest.mark.parametrize("name", ["echo2-learner", "echo2-node", "swarm"])
def test_each_command_resolves(name: str) -> None:
    (entry,) = [e for e in entry_points() if e.name == name]

    assert callable(entry.load())


@pytest.mark.parametrize(
    "command",
    [
        "node.cli --help",
        "node.cli join --help",
        "learner.cli --help",
        "learner.cli serve --help",
        "learner.cli init --help",
        "echo2swarm.cli --help",
        "echo2swarm.cli status --help",
    ],
)
def test_help_answers_without_loading_anything_heavy(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )

    # Lines are "import time: self | cumulative | name", and what the command itself said.
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Usage:" in done.stdout
    assert "click" in imported
    assert not imported & HEAVY


def test_the_version_is_that_of_the_distribution() -> None:
    assert echo2swarm.__version__ == distribution("echo2swarm").version


def test_what_the_package_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'echo2swarm' has no attribute 'vresion'"):
        echo2swarm.vresion  # type: ignore[attr-defined]  # noqa: B018


def test_the_solver_of_the_selector_comes_with_the_learner_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert not any("scipy" in line for line in project["dependencies"])
    assert any("scipy" in line for line in project["optional-dependencies"]["learner"])
