"""Who may import whom: the contracts in ``pyproject.toml``."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_packaging import PACKAGES, ROOT

CONTRACTS = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"


def test_the_import_contracts_are_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONTRACTS], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_modules_is_a_package_with_a_docstring(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}

    without = [f for f in folders if not (f / "__init__.py").read_text().startswith('"""')]

    assert without == []


def test_every_test_folder_is_a_package() -> None:
    # Without this, tests/node would hide the package node from the tests.
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}

    assert [f for f in folders if not (f / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_no_module_has_a_name_that_hides_another(tmp_path: Path) -> None:
    # Folders named like what libp2p puts beside us in site-packages would hide, or be hidden.
    taken = {"docs", "examples", "interop", "stubs", "newsfragments"}
    importable = {path.parent.name for path in ROOT.glob("*/__init__.py")}

    assert not importable & taken
