"""What a person calls a model becomes a folder: demo, a path, or a hub id fetched from a (stand-in) hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from foveate.core.errors import CheckpointError
from foveate.engine.checkpoint import DEMO, locate
from tests.support.harness import tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves one checkpoint folder as the repository org/model, in the words of the hub's file API."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.folder = folder
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *words: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, with_body: bool) -> None:
        self.server.asked.append(self.path)
        path = self.path.split("?")[0]
        if path.startswith("/api/models/org/model/tree/"):
            rows = [{"type": "file", "path": p.name, "size": p.stat().st_size, "oid": COMMIT} for p in self._files()]
            return self._send(200, json.dumps(rows).encode(), "application/json", with_body)
        if path.startswith("/api/models/org/model"):
            names = [{"rfilename": p.name} for p in self._files()] + [{"rfilename": "photo.jpg"}]
            data = json.dumps({"id": "org/model", "sha": COMMIT, "siblings": names}).encode()
            return self._send(200, data, "application/json", with_body)
        prefix = f"/org/model/resolve/{COMMIT}/"
        if path.startswith(prefix) and (self.server.folder / path.removeprefix(prefix)).is_file():
            data = (self.server.folder / path.removeprefix(prefix)).read_bytes()
            return self._send(200, data, "application/octet-stream", with_body)
        return self._send(404, b'{"error": "Repository not found"}', "application/json", with_body)

    def _files(self) -> list[Path]:
        return sorted(self.server.folder.iterdir())

    def _send(self, status: int, data: bytes, kind: str, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if with_body:
            self.wfile.write(data)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub(tiny("dense")[2])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def in_fresh_process(code: str, hub: Hub, home: Path) -> subprocess.CompletedProcess[str]:
    """The hub library reads its endpoint when it is imported, so each try gets a process of its own."""
    env = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


def test_a_hub_id_is_fetched_and_usable(hub: Hub, tmp_path: Path) -> None:
    code = """
from foveate.engine.checkpoint import locate
from foveate.models.registry import describe
folder = locate("org/model")
print(describe(folder).model_type, sorted(p.name for p in folder.iterdir()))
"""
    done = in_fresh_process(code, hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "qwen3_5" in done.stdout and "model.safetensors" in done.stdout and "photo.jpg" not in done.stdout
    assert any("resolve" in path for path in hub.asked)


def test_an_unknown_hub_id_says_so(hub: Hub, tmp_path: Path) -> None:
    code = """
from foveate.engine.checkpoint import locate
from foveate.core.errors import CheckpointError
try:
    locate("org/other")
except CheckpointError as error:
    print("REFUSED", error.message)
"""
    done = in_fresh_process(code, hub, tmp_path)
    assert done.returncode == 0 and "REFUSED org/other" in done.stdout, done.stdout + done.stderr


def test_demo_ds4_is_bundled_or_says_how_it_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("foveate.engine.checkpoint.BUNDLED", {"demo-ds4": tmp_path})
    with pytest.raises(CheckpointError, match=r"python -m recipe --family deepseek_v4 --out DIR"):
        locate("demo-ds4")
    (tmp_path / "config.json").write_text("{}")
    assert locate("demo-ds4") == tmp_path


def test_demo_and_folders(tmp_path: Path) -> None:
    assert locate("demo") == DEMO
    folder = tiny("dense")[2]
    assert locate(str(folder)) == folder
    for wrong in (str(tmp_path), "./nothing", "/no/such/folder", "plainname", "a/b/c"):
        with pytest.raises(CheckpointError, match="no checkpoint at"):
            locate(wrong)
