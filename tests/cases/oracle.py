"""The general oracle of the cases: a real server over a tiny model, and what must hold after whatever was done to it.

Owns the running server (sockets, event loop, engine, encoder), the pictures of known answers, and `check`: pools at
their baseline, both known-good requests answered as before, /health 200, nothing of a picture in the log. `refused`
holds the shape of every 4xx and 5xx.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveate.engine.build import open_engine
from foveate.server.app import create_app
from foveate.server.run import GracefulServer, listen, url_of
from foveate.service.memory import HostMemory
from foveate.service.service import Service
from tests.support.engines import fault_in_rest, png, wished

CHAT = "/v1/chat/completions"
MAX_ERROR_BYTES = 4096
# A Python object's repr, an address, a traceback, a path of ours: nothing of these belongs into an answer.
INSIDES = re.compile(r"<[\w.]+ |<class|\b0x[0-9a-f]{4}|Traceback|object at|\.py\b|Error\(|BytesIO")


@dataclass(frozen=True)
class Said:
    """What a server answered: text, log-probabilities of its tokens, why it ended, what it counted."""

    text: str
    logprobs: tuple[float, ...]
    reason: str
    usage: dict[str, Any] = field(compare=False)
    timings: dict[str, Any] = field(compare=False)

    def same(self, other: Said) -> bool:
        """Token for token, with log-probabilities to within float rounding."""
        return self.text == other.text and self.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def url(data: bytes, mime: str = "image/png") -> str:
    """A data URL."""
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def part(source: bytes | str, **extra: Any) -> dict[str, Any]:
    """An image part: bytes become a data URL, a string is a URL already."""
    return {"type": "image_url", "image_url": {"url": url(source) if isinstance(source, bytes) else source, **extra}}


def parts(*content: bytes | str | dict[str, Any]) -> list[dict[str, Any]]:
    """Content parts: bytes are pictures, strings are text."""
    known = (one if isinstance(one, dict) else part(one) if isinstance(one, bytes) else None for one in content)
    return [made or {"type": "text", "text": one} for made, one in zip(known, content, strict=True)]


def user(*content: bytes | str | dict[str, Any]) -> list[dict[str, Any]]:
    """One user turn."""
    return [{"role": "user", "content": parts(*content)}]


def refused(response: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> str:
    """Assert the shape of a refusal; its message."""
    assert response.status_code == status, f"{response.status_code}: {response.text[:300]}"
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < MAX_ERROR_BYTES
    error = response.json()["error"]
    assert set(response.json()) == {"error"} and set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str)
    assert not INSIDES.search(error["message"]), error["message"]
    assert (status == 503) == ("retry-after" in response.headers)
    assert code is None or error["code"] == code, error
    assert param is None or error["param"] == param, error
    return error["message"]


class Log(logging.Handler):
    """Keeps every line of foveate's log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


class House:
    """A running server, ways to ask it, and what it said before anything was done to it."""

    def __init__(self, service: Service, server: GracefulServer, address: str, log: Log, keys: tuple[str, ...]) -> None:
        self.service, self.server, self.address, self.log = service, server, address, log
        self.engine = service.engine
        head = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        self.http = httpx.Client(base_url=address, timeout=120, headers=head)
        self._opened: list[socket.socket] = []
        self._known = self._ask_known()

    def post(self, messages: Any, **fields: Any) -> httpx.Response:
        return self.http.post(CHAT, json={"messages": messages, "temperature": 0, "max_tokens": 8, **fields})

    def ask(self, *content: bytes | str | dict[str, Any], **fields: Any) -> Said:
        """One user turn, greedy, eight tokens, with log-probabilities."""
        return self.say(user(*content), **fields)

    def say(self, messages: Any, **fields: Any) -> Said:
        response = self.post(messages, **{"logprobs": True, "ignore_eos": True, **fields})
        assert response.status_code == 200, response.text[:500]
        body = response.json()
        choice = body["choices"][0]
        logprobs = tuple(token["logprob"] for token in (choice["logprobs"] or {"content": []})["content"])
        return Said(choice["message"]["content"], logprobs, choice["finish_reason"], body["usage"], body["timings"])

    def stream(self, messages: Any, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that ends well."""
        response = self.post(messages, **{"stream": True, "ignore_eos": True, **fields})
        assert response.status_code == 200, response.text[:500]
        lines = [line for line in response.text.split("\n") if line and not line.startswith(":")]
        assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
        return [json.loads(line[6:]) for line in lines[:-1]]

    def open_request(self, messages: Any, **fields: Any) -> socket.socket:
        """Send a chat request on a connection of its own and leave it there; closing it is the client leaving."""
        return self.open_body(CHAT, {"messages": messages, "temperature": 0, "ignore_eos": True, **fields})

    def open_body(self, path: str, fields: dict[str, Any]) -> socket.socket:
        """The same for any path."""
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=120)
        self._opened.append(sock)
        body = json.dumps(fields).encode()
        sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return sock

    def close(self) -> None:
        """Leave no connection open, whatever a failed test has left."""
        self.http.close()
        for sock in self._opened:
            sock.close()

    def reconnect(self) -> None:
        """Close the connections that this house's own client keeps."""
        headers = self.http.headers
        self.http.close()
        self.http = httpx.Client(base_url=self.address, timeout=120, headers=headers)

    def settle(self) -> None:
        """Wait until nothing is under way and nothing is held."""

        def at_rest() -> bool:
            busy = self.service._preparing or self.service.open_answers
            return not busy and fault_in_rest(self.engine) is None

        eventually(at_rest, lambda: fault_in_rest(self.engine) or "an answer is open")

    def check(self) -> None:
        """The general oracle."""
        self.settle()
        assert self._ask_known() == self._known, "a known-good request is answered otherwise than before"
        self.settle()
        assert self.http.get("/health").status_code == 200
        assert not [line for line in self.log.lines if "base64," in line or re.search(r"[A-Za-z0-9+/]{200}", line)]

    def _ask_known(self) -> tuple[str, str]:
        return self.ask("hello", max_tokens=4).text, self.ask(png(7), "what is it?", max_tokens=4).text


def eventually(holds: Any, tell: Any = lambda: "it never came") -> None:
    """Wait until `holds()`; fails after a time that no healthy run needs."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.002)


@contextmanager
def open_house(
    folder: Path, keys: tuple[str, ...] = (), memory: HostMemory | None = None, **settings: Any
) -> Iterator[House]:
    """A server on a checkpoint folder until the block ends; then it must be at its baseline and leave no thread."""
    wishes = wished(**({"min_free_mib": 0} | settings))
    service = Service(open_engine(str(folder), wishes), memory=memory)
    log = Log()
    logging.getLogger("foveate").addHandler(log)
    ready = threading.Event()
    sock = listen("127.0.0.1", 0, wishes.send_stall_s)
    server = GracefulServer(create_app(service, wishes, keys=keys), service, 0.0, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    house = None
    try:
        assert ready.wait(60)
        house = House(service, server, url_of(sock), log, keys)
        house.settle()  # the numbers of the engine trail its answers: a test must not see those of the first ones
        yield house
        house.settle()
    finally:
        if house is not None:
            house.close()
        server.should_exit = True
        thread.join(60)
        own = threads_of(service)
        service.engine.close()
        logging.getLogger("foveate").removeHandler(log)
    left = [one.name for one in (thread, *own) if one.is_alive()]
    assert not left, f"threads left: {left}"


def threads_of(service: Service) -> list[threading.Thread]:
    """The engine's thread, the decoders' and the encoder's."""
    loop, encoder = service.engine.loop, service.engine.loop._encoder
    if encoder is None:  # a test has closed it
        return [loop._thread]
    held = [value for value in vars(encoder.worker).values() if isinstance(value, threading.Thread)]
    return [loop._thread, *encoder._pool._threads, *held]
