"""How to install an extra of a package that is on no index."""

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from echo2swarm.system.extras import install_command, install_extra


class Installed:
    """A distribution with what its installer noted."""

    def __init__(self, noted: str | None) -> None:
        self._noted = noted

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._noted


def note(monkeypatch: pytest.MonkeyPatch, noted: str | None) -> None:
    monkeypatch.setattr("echo2swarm.system.extras.distribution", lambda _: Installed(noted))


@pytest.fixture(autouse=True)
def prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    folder.mkdir()
    monkeypatch.setattr(sys, "prefix", str(folder))
    return folder


def test_the_checkout_that_it_was_installed_from_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    note(monkeypatch, json.dumps({"url": checkout.as_uri(), "dir_info": {}}))

    assert shlex.split(install_command("gpu")) == ["pip", "install", f"{checkout}[gpu]"]
    assert shlex.split(install_command()) == ["pip", "install", str(checkout)]
    assert install_extra("gpu") == f'install the extra "gpu": {install_command("gpu")}'


def test_what_runs_in_its_checkout_goes_on_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    noted = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    note(monkeypatch, json.dumps(noted))

    assert shlex.split(install_command("gpu")) == ["pip", "install", "-e", f"{tmp_path}[gpu]"]


@pytest.mark.parametrize(
    "noted", [None, "", "[]", "{", '{"url": "file:///no/where"}', '{"url": "https://a.example/"}']
)
def test_a_checkout_that_is_not_known_has_a_name_to_fill_in(
    monkeypatch: pytest.MonkeyPatch, noted: str | None
) -> None:
    note(monkeypatch, noted)

    assert install_command("gpu") == "pip install 'PATH_OF_CHECKOUT[gpu]'"


def test_a_place_elsewhere_is_no_checkout_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    note(monkeypatch, json.dumps({"url": f"https://a.example{tmp_path}"}))

    assert install_command() == "pip install PATH_OF_CHECKOUT"


def test_so_it_is_where_it_was_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("echo2swarm.system.extras.distribution", missing)

    assert install_command() == "pip install PATH_OF_CHECKOUT"


def test_in_an_environment_of_pipx_it_is_pipx_that_runs_pip(
    monkeypatch: pytest.MonkeyPatch, prefix: Path
) -> None:
    note(monkeypatch, None)
    (prefix / "pipx_metadata.json").touch()

    assert install_command("gpu") == "pipx runpip echo2swarm install 'PATH_OF_CHECKOUT[gpu]'"
