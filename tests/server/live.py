"""A real server on a free port, in a thread, over a scripted service."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from foveate.core.config import Settings
from foveate.server.app import create_app
from foveate.server.contract import Limits
from foveate.server.run import GracefulServer, listen, url_of
from tests.server.fake_service import FakeService, Script

PIXEL = "data:image/png;base64,iVBORw0KGgo="
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


class Live:
    """The running server and the ways to talk to it."""

    def __init__(self, service: FakeService, server: GracefulServer, url: str) -> None:
        self.service = service
        self.server = server
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.http.post(CHAT, json={"messages": HELLO, **fields})

    def events(self, **fields: Any) -> list[str]:
        """Every non-empty line of the stream."""
        response = self.chat(stream=True, **fields)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line for line in response.text.split("\n") if line]

    def chunks(self, **fields: Any) -> list[dict[str, Any]]:
        """The parsed chunks of a stream that ends well."""
        lines = [line for line in self.events(**fields) if not line.startswith(":")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def send_chat(self, sock: socket.socket, **fields: Any) -> None:
        """Send a chat request on a raw connection."""
        body = json.dumps({"messages": HELLO, **fields}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)

    def reset(self) -> None:
        """A fresh state of the scripted service."""
        fresh = FakeService()
        self.service.__dict__.update(fresh.__dict__)

    def play(self, *parts: Any, **fields: Any) -> None:
        """Script the answers from here on."""
        self.service.script = Script(list(parts), **fields)


@contextmanager
def running(limits: Limits | None = None) -> Iterator[Live]:
    """Serve until the block ends."""
    service = FakeService()
    app = create_app(service, Settings(max_body_mib=4), limits)
    ready = threading.Event()
    sock = listen("127.0.0.1", 0, limits.send_stall_s if limits else 30.0)
    server = GracefulServer(app, service, 0.0, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        assert ready.wait(60)
        live = Live(service, server, url_of(sock))
        with live.http:
            yield live
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
