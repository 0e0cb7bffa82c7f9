"""Clients that leave or do not read, and servers that stop: every answer is closed once and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from foveate.core.chat import ChatRequest, TextDelta
from foveate.core.errors import ConfigError
from foveate.server.contract import Limits
from foveate.server.errors import ClientGone
from foveate.server.reply import Channel, InFlight, Reply
from foveate.server.run import listen, url_of
from tests.server.fake_service import FakeService, Gate, Script, words
from tests.server.live import CHAT, HELLO, Live, running

MODES = pytest.mark.parametrize("stream", [False, True])
CHOICES = pytest.mark.parametrize("n", [1, 3])


def eventually(holds: Any) -> None:
    """Wait until `holds()`; fails after a time that no healthy run needs."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


@MODES
@CHOICES
def test_leaving_while_queued_takes_the_request_out_of_the_queue(live: Live, stream: bool, n: int) -> None:
    gate = Gate()
    live.service.script = Script(words("ok"), admission=[gate])
    sock = live.connect()
    live.send_chat(sock, stream=stream, n=n)
    assert gate.reached.wait(10)
    sock.close()
    assert live.service.unqueue_seen.wait(10)
    assert (live.service.unqueued, live.service.closed) == (1, 0)
    gate.open()
    assert live.chat().status_code == 200


@MODES
@CHOICES
def test_leaving_while_it_runs_aborts_exactly_once(live: Live, stream: bool, n: int) -> None:
    gate = Gate()
    live.play(TextDelta(0, "a", 1), gate)
    sock = live.connect()
    live.send_chat(sock, stream=stream, n=n)
    assert gate.reached.wait(10)
    sock.close()
    assert live.service.close_seen.wait(10)
    assert (live.service.closed, live.service.aborted) == (1, 1)
    gate.open()
    live.play(*words("ok"))
    assert live.chat().status_code == 200
    assert (live.service.closed, live.service.aborted) == (2, 1)


def test_leaving_between_events_aborts(live: Live) -> None:
    live.play(endless=TextDelta(0, "word ", 1))
    sock = live.connect()
    live.send_chat(sock, stream=True)
    assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    sock.close()
    assert live.service.close_seen.wait(10)
    assert (live.service.closed, live.service.aborted) == (1, 1)


def test_a_complete_answer_is_closed_and_not_aborted(live: Live) -> None:
    for stream in (False, True):
        assert live.chat(stream=stream).status_code == 200
    eventually(lambda: live.service.closed == 2)
    assert live.service.aborted == 0


def test_a_hundred_leavers_leave_nothing_behind(live: Live) -> None:
    gates = []
    for round_ in range(100):
        gate = Gate()
        gates.append(gate)
        live.service.script = Script([gate], admission=[gate]) if round_ % 2 else Script([gate])
        sock = live.connect()
        live.send_chat(sock, stream=round_ % 4 < 2)
        assert gate.reached.wait(10)
        sock.close()
    eventually(lambda: live.service.closed + live.service.unqueued == 100)
    eventually(lambda: len(live.server.server_state.connections) <= 1)  # the shared client's own
    eventually(lambda: not live.server.server_state.tasks)
    assert not live.server._in_flight._endings
    for gate in gates:
        gate.open()


def test_a_slow_reader_is_dropped_and_nobody_else_waits() -> None:
    limits = Limits(send_stall_s=0.4)
    with running(limits) as live, socket.socket() as sock:
        live.play(endless=TextDelta(0, "x" * 10_000, 1))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = live.url.removeprefix("http://").rpartition(":")
        sock.connect((host, int(port)))
        live.send_chat(sock, stream=True)
        assert live.service.close_seen.wait(20)
        assert (live.service.closed, live.service.aborted) == (1, 1)
        live.play(*words("ok"))
        assert live.chat().json()["choices"][0]["message"]["content"] == "ok"
        live.http.close()
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            eventually(lambda: not live.server.server_state.connections)


def test_a_send_that_stalls_is_given_up() -> None:
    async def send(message: Message) -> None:
        await asyncio.Event().wait()

    async def check() -> None:
        channel = Channel(send, asyncio.get_running_loop().create_future(), Limits(send_stall_s=0.01))
        with pytest.raises(ClientGone):
            await channel.write(b"x")

    asyncio.run(check())


def run_reply(service: FakeService, receive: Any, send: Any, deliver: Any) -> InFlight:
    in_flight = InFlight()
    reply = Reply(partial(service.chat, ChatRequest(())), deliver, in_flight, Limits())
    asyncio.run(reply({"type": "http"}, receive, send))
    return in_flight


def test_admitted_in_the_moment_the_client_leaves_is_closed() -> None:
    """The service finishes admission although it is being cancelled: its answer must not be lost."""

    class Stubborn(FakeService):
        async def chat(self, request: ChatRequest) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return await super().chat(request)

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def never(*_: Any) -> None:
        raise AssertionError("nothing may be delivered")

    service = Stubborn()
    with pytest.raises(ClientGone):
        run_reply(service, receive, never, never)
    assert (service.closed, service.aborted) == (1, 1)


def test_a_failing_delivery_closes_the_answer_and_ends_the_watch() -> None:
    service, watched = FakeService(), []

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            watched.append("ended")
        raise AssertionError("unreachable")

    async def deliver(*_: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_reply(service, receive, deliver, deliver)
    assert service.closed == 1 and watched == ["ended"]


def test_draining_refuses_and_says_so(live: Live) -> None:
    live.service.draining = True
    response = live.chat()
    assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
    health = live.http.get("/health")
    assert health.status_code == 503 and health.json()["status"] == "draining"
    assert live.service.requests == []


def test_a_port_that_is_taken_is_a_plain_error() -> None:
    with listen("127.0.0.1", 0, 30.0) as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            listen("127.0.0.1", port, 30.0)


PROGRAM = """
import sys
from foveate.core.chat import TextDelta
from foveate.core.config import Settings
from foveate.server.app import create_app
from foveate.server.run import serve
from tests.server.fake_service import FakeService, Gate, Script, words
service, settings = FakeService(), Settings()
gate = Gate()
if sys.argv[1] == "stuck":
    service.script = Script([TextDelta(0, "a", 1), gate])
else:
    service.script = Script([TextDelta(0, "a", 1), gate, *words("b")])
    import threading
    def watch():
        import time
        while not service.draining:
            time.sleep(0.005)
        gate.open()
    threading.Thread(target=watch, daemon=True).start()
serve(create_app(service, settings), service, host="127.0.0.1", port=0, shutdown_s=float(sys.argv[2]),
      announce=lambda url: print(url, flush=True))
print("closed", service.closed, flush=True)
"""


@pytest.mark.parametrize(
    ("script", "patience_s", "signals", "ending"),
    [
        ("finishes", 30.0, [signal.SIGTERM], b"[DONE]"),
        ("stuck", 0.05, [signal.SIGTERM], b"shutting down"),
        ("stuck", 30.0, [signal.SIGINT, signal.SIGTERM], b"shutting down"),
    ],
)
def test_b45_signals_end_the_server_in_order(script: str, patience_s: float, signals: list[int], ending: bytes) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, script, str(patience_s)]
    env = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            with httpx.stream("POST", url + CHAT, json={"messages": HELLO, "stream": True}) as response:
                pieces = response.iter_bytes()
                data = b""
                while b'"content":"a"' not in data:
                    data += next(pieces)
                for number in signals:
                    process.send_signal(number)
                    if number is not signals[-1]:
                        eventually(lambda: httpx.get(url + "/health").status_code == 503)
                data += b"".join(pieces)
            assert ending in data
            rest, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors.decode()
    assert rest.split() == [b"closed", b"1"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(url + "/health")
