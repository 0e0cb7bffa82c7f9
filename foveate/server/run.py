"""Running the application: a socket, a server around it, and an orderly end.

Owns listening and signals. The first SIGTERM or SIGINT refuses new requests (503, and /health says so), lets running
ones finish within the time given and ends what is left with a reason; a second one ends everything at once. Promises
exit code 0 in both cases. Refuses to know what the application serves; closing the service is its owner's business.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from foveate.core.errors import ConfigError
from foveate.server.contract import Service
from foveate.server.reply import InFlight

log = logging.getLogger(__name__)
ABORT_S = 3.0


def listen(host: str, port: int, stall_s: float) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ConfigError when the address cannot be had.

    `stall_s`: where the system can, a connection whose client takes nothing for that long is cut.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or 'unknown address'}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
    return sock


def url_of(sock: socket.socket) -> str:
    """The address to type: what the socket really listens on."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class GracefulServer(uvicorn.Server):
    """uvicorn's server with foveate's way to end."""

    def __init__(self, app: FastAPI, service: Service, shutdown_s: float, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(ABORT_S),
        )
        super().__init__(config)
        self._service = service
        self._in_flight: InFlight = app.state.in_flight
        self._shutdown_s = shutdown_s
        self._ready = ready
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals for as long as the server runs; without effect outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def end(self) -> None:
        """End in order; called again, at once."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())
            return
        log.warning("told to stop twice: ending running requests now")
        self._service.draining = True
        self._in_flight.stop()
        self.config.timeout_graceful_shutdown = 0
        self.should_exit = self.force_exit = True

    async def _drain(self) -> None:
        self._service.draining = True
        log.info("shutting down: no new requests; running ones get %g s", self._shutdown_s)
        if not await self._in_flight.emptied(self._shutdown_s):
            log.warning("shutting down: ending requests that still run")
            self._in_flight.stop()
            await self._in_flight.emptied(ABORT_S)
        self.should_exit = True


def serve(
    app: FastAPI,
    service: Service,
    *,
    host: str,
    port: int,
    shutdown_s: float,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until told to stop by a signal; `announce` gets the URL once requests are taken.

    Returns when every connection is closed. Raises ConfigError when the address cannot be had.
    """
    with listen(host, port, app.state.limits.send_stall_s) as sock:
        url = url_of(sock)
        GracefulServer(app, service, shutdown_s, lambda: announce(url)).run(sockets=[sock])
