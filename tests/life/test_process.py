"""A real server process: told to stop under load, with nowhere to log to, with a checkpoint that is broken.

Owns the process from its command line to its exit code; it must end by itself and leave no child behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.cases.oracle import CHAT, eventually, user
from tests.support.engines import data_url, png

ROOT = Path(__file__).parents[2]
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"


@contextmanager
def process(model: Path, *words: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """`foveate serve` with small numbers; killed with all its children if it is still there at the end."""
    command = [sys.executable, "-m", "foveate.cli", "serve", str(model), "--port", "0", "--threads", "2"]
    if "--mmproj-device" not in words:
        command += ["--mmproj-device", "cpu", "--encoder-worker", "process"]
    command += ["--max-ctx", "2048", "--kv-tokens", "4096", "--max-concurrency", "4", "--min-free-mib", "0", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    with subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **streams) as running:
        try:
            yield running
        finally:
            for pid in session_of(running):
                os.kill(pid, signal.SIGKILL)


def session_of(running: subprocess.Popen[str]) -> list[int]:
    """The processes that are left of it and of all that it started; the dead that nobody has buried do not count."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == running.pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def url_of(running: subprocess.Popen[str]) -> str:
    """The address that it announces."""
    assert running.stdout is not None
    line = running.stdout.readline().strip()
    assert " at http://" in line, (line, running.stderr.read() if running.stderr else "")
    return line.rpartition(" ")[2]


def post(url: str, content: list[Any], **fields: Any) -> httpx.Response:
    body = {"messages": user(*content), "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    return httpx.post(url + CHAT, json=body, timeout=120)


def post_elsewhere(url: str, path: str, pictures: list[bytes], most: int, **fields: Any) -> httpx.Response:
    """The same in the words of another API."""
    where = [data_url(data) for data in pictures]
    if path == MESSAGES:
        blocks: list[Any] = [{"type": "image", "source": {"type": "url", "url": one}} for one in where]
        turn = {"role": "user", "content": [*blocks, {"type": "text", "text": "tell me"}]}
        body: dict[str, Any] = {"messages": [turn], "max_tokens": most}
    else:
        items: list[Any] = [{"type": "input_image", "image_url": one} for one in where]
        turn = {"role": "user", "content": [*items, {"type": "input_text", "text": "tell me"}]}
        body = {"input": [turn], "max_output_tokens": most}
    return httpx.post(url + path, json=body | fields, timeout=120)


def ends(running: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for the end; asserts the exit code and that no child is left. What it logged."""
    _, log = running.communicate(timeout=90)
    assert running.returncode == code, log
    eventually(lambda: not session_of(running), lambda: f"left: {session_of(running)}")
    return log or ""


class Load:
    """Requests under way: four streams run, fifty wait."""

    def __init__(self, url: str, pool: ThreadPoolExecutor) -> None:
        self.answers: list[Future[httpx.Response]] = []
        for i in range(54):
            content = [png(i), png(i + 1), "tell me"] if i % 2 else ["tell me"]
            stream, most = i % 3 == 0, 3800 if i < 4 else 400
            if i % 4 in (0, 1):
                self.answers.append(pool.submit(post, url, content, stream=stream, max_tokens=most))
            else:
                pictures, path = [png(i), png(i + 1)] if i % 2 else [], MESSAGES if i % 4 == 2 else RESPONSES
                self.answers.append(pool.submit(post_elsewhere, url, path, pictures, most, stream=stream))
        eventually(lambda: httpx.get(url + "/health").json()["waiting"] >= 45)

    def check(self) -> None:
        """Every one was answered: completely, with 503, or with an error as a stream's last event."""
        for one in self.answers:
            response = one.result()
            whole, cut = {
                CHAT: ("data: [DONE]\n\n", '"code":"server_busy"'),
                MESSAGES: ("event: message_stop", '"type":"overloaded_error"'),
                RESPONSES: ("event: response.completed", "event: response.failed"),
            }[response.request.url.path]
            if response.status_code == 200 and "event-stream" in response.headers["content-type"]:
                last = response.text.strip().rpartition("\n\n")[2] + "\n\n"
                assert whole in last or cut in last or "event: response.incomplete" in last, last
            elif response.status_code != 200:
                error = response.json()["error"]
                assert response.status_code == 503 and "retry-after" in response.headers
                assert "overloaded_error" in error["type"] if response.request.url.path == MESSAGES else error["code"]


@pytest.mark.parametrize("signals", [1, 2])
def test_B45_told_to_stop_under_load(folder: Path, signals: int) -> None:
    words = ("--shutdown-s", "2" if signals == 1 else "60", "--max-ctx", "4096", "--kv-tokens", "16384")
    with process(folder, *words) as running, ThreadPoolExecutor(54) as pool:
        url = url_of(running)
        assert post(url, [png(1), "x"]).status_code == 200
        assert len(session_of(running)) > 1, "the encoder has a process of its own"
        load = Load(url, pool)
        running.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(url + "/health").status_code == 503)
        with contextlib.suppress(httpx.ConnectError):  # where this test was held up, the server has finished meanwhile
            refusal = post(url, ["too late"])
            assert refusal.status_code == 503 and refusal.json()["error"]["code"] == "server_busy"
        if signals == 2:
            running.send_signal(signal.SIGTERM)
        log = ends(running)
        load.check()
        assert "Traceback" not in log and "base64" not in log


def test_B45_told_to_stop_while_the_encoder_hangs(folder: Path) -> None:
    with (
        process(folder, "--shutdown-s", "0.5", "--inject-fault", "encode-hang:2") as running,
        ThreadPoolExecutor(1) as pool,
    ):
        url = url_of(running)
        assert post(url, [png(1), "x"]).status_code == 200
        stuck = pool.submit(post, url, [png(2), "x"])
        eventually(lambda: httpx.get(url + "/health").json()["running"] == 1)
        running.send_signal(signal.SIGTERM)
        ends(running)
        assert stuck.result().status_code == 503


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_the_log_changes_nothing(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open("/dev/full", "w") as full:
        words = ("--port", str(port), "--log-level", "debug", "--mmproj-device", "same")
        with process(folder, *words, stdout=full, stderr=full) as running:
            url = f"http://127.0.0.1:{port}"

            def up() -> bool:
                assert running.poll() is None, "it ended"
                try:
                    return httpx.get(url + "/health").status_code == 200
                except httpx.ConnectError:
                    return False

            eventually(up)
            assert post(url, [png(1), "x"]).status_code == 200
            assert post(url, [png(1)[:100], "x"]).status_code == 400
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0


@pytest.mark.parametrize("part", ["model.visual.", "model.language_model."])
def test_a_broken_checkpoint_ends_the_start_with_its_reason(folder: Path, tmp_path: Path, part: str) -> None:
    from safetensors.torch import load_file, save_file

    broken = shutil.copytree(folder, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    victim = next(name for name in tensors if name.startswith(part) and name.endswith("weight"))
    del tensors[victim]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with process(broken) as running:
        log = ends(running, code=1)
    assert victim in log and "Traceback" not in log


def test_keys_from_the_environment_and_none_in_what_is_printed(folder: Path) -> None:
    env = {**os.environ, "FOVEATE_API_KEY": "sk-from-environment"}
    with process(folder, "--print-config", "--api-key", "sk-from-flag", env=env) as running:
        out, log = running.communicate(timeout=60)
    assert json.loads(out)["settings"]["api_key"] == "(set)" and "sk-" not in out + log
    with process(folder, "--mmproj-device", "same", env=env) as running:
        url = url_of(running)
        assert post(url, ["x"]).status_code == 401
        head = {"Authorization": "Bearer sk-from-environment"}
        assert httpx.get(url + "/v1/models", headers=head).status_code == 200
        running.send_signal(signal.SIGTERM)
        assert "sk-" not in ends(running)
