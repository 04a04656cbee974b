"""How to install what an optional part of this package needs.

The package is on no index: it is installed from a checkout, which the installer has noted
(``direct_url.json``, PEP 610).
"""

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_PACKAGE: Final = "echo2swarm"
_UNKNOWN: Final = "PATH_OF_CHECKOUT"
_PIPX_FILE: Final = "pipx_metadata.json"


def install_extra(extra: str) -> str:
    """Return the words that say how to install an extra into this environment."""
    return f'install the extra "{extra}": {install_command(extra)}'


def install_command(extra: str = "") -> str:
    """Return the command that installs this package, with an extra, into this environment."""
    checkout, is_editable = _source()
    what = str(checkout) if checkout else _UNKNOWN
    if extra:
        what += f"[{extra}]"
    how = "install -e" if is_editable else "install"
    pip = f"pipx runpip {_PACKAGE}" if (Path(sys.prefix) / _PIPX_FILE).exists() else "pip"
    return f"{pip} {how} {shlex.quote(what)}"


def _source() -> tuple[Path | None, bool]:
    """Return the checkout that this was installed from, if known, and whether it runs there."""
    try:
        noted = json.loads(distribution(_PACKAGE).read_text("direct_url.json") or "{}")
        url = urlsplit(noted["url"])
        is_editable = noted.get("dir_info", {}).get("editable", False) is True
    except (PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, False
    path = Path(unquote(url.path))
    if url.scheme != "file" or not (path / "pyproject.toml").is_file():
        return None, False
    return path, is_editable
