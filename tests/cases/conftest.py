"""One server for most cases, on a tiny model that may fetch from this machine; after each case the general oracle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cases.oracle import House, open_house
from tests.support.harness import tiny

Serve = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class PictureHost:
    """A web server of this machine: what it serves by path, and which paths were asked for."""

    port: int
    pages: dict[str, bytes | Serve] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture(scope="session")
def web() -> Iterator[PictureHost]:
    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            host.asked.append(self.path)
            page = host.pages.get(self.path, b"")
            if callable(page):
                return page(self)
            self.send_response(200 if page else 404)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    host = PictureHost(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield host
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def folder() -> Path:
    return tiny("dense")[2]


@pytest.fixture(scope="session")
def shared_house(folder: Path, web: PictureHost) -> Iterator[House]:
    with open_house(folder, allowed_media_networks="127.0.0.0/8", allowed_media_ports=str(web.port)) as house:
        yield house


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    yield shared_house
    shared_house.check()
