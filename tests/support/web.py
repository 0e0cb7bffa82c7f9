"""A web server of this machine that serves what a test puts on it, for pictures that are fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Serve = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class PictureHost:
    """A web server of this machine: what it serves by path, and which paths were asked for."""

    port: int
    pages: dict[str, bytes | Serve] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@contextmanager
def picture_host() -> Iterator[PictureHost]:
    """Serve until the block ends."""

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

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *words: object) -> None:
            """A client that leaves in the middle is what these tests are about."""

    server = Quiet(("127.0.0.1", 0), Page)
    host = PictureHost(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield host
    server.shutdown()
    thread.join()
    server.server_close()
