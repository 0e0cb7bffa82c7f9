"""Time from starting a fresh server process until it is ready, and until its first answer.

Owns the measurement for foveate and for any other server that a command starts: the clock runs from the start of the
process, over imports, weights, kernels and graphs, until its health or model list answers; then one request with one
new chart is asked for one token. Every round is a new process, ended in order afterwards. Prints a table, then one
JSON line.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from foveate.bench.asking import Question, Server
from foveate.bench.charts import painter
from foveate.bench.record import line, summed
from foveate.core.errors import RequestFailed

POLL_S = 0.02
END_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start: a command of its own that serves at `url`, or foveate with these words behind `serve`.

    patience_s: how long a start may take.
    """

    words: tuple[str, ...] = ()
    command: str = ""
    url: str = ""
    key: str = ""
    repeats: int = 3
    patience_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the start of the process: until the server answers, and until the first answer of the model."""

    ready_s: float
    first_answer_s: float


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def command_of(plan: Plan) -> tuple[list[str], str]:
    """The words that start the server, and where it will be."""
    if plan.command:
        return shlex.split(plan.command), plan.url
    port = free_port()
    words = [sys.executable, "-m", "foveate.cli", "serve", *plan.words, "--host", "127.0.0.1", "--port", str(port)]
    return words, f"http://127.0.0.1:{port}"


async def measure(plan: Plan) -> Start:
    """One start. Raises RequestFailed when the process ends or takes too long; it never outlives the call."""
    words, url = command_of(plan)
    began_s = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await _ready(process, url, began_s + plan.patience_s, plan.key)
        ready_s = time.monotonic() - began_s
        server = Server(url, "", plan.key)
        try:
            await server.find_model()
            draw, _ = painter("charts")
            await server.ask(Question("Describe the picture.", (draw(1),)))
        finally:
            await server.aclose()
        return Start(ready_s, time.monotonic() - began_s)
    finally:
        _end(process)


async def _ready(process: subprocess.Popen[bytes], url: str, until_s: float, key: str) -> None:
    """Wait until the list of models can be had: the one thing that every server offers only when it can answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=5.0) as client:
        while time.monotonic() < until_s:
            if process.poll() is not None:
                raise RequestFailed(f"the server ended with {process.returncode} before it was ready")
            try:
                if (await client.get(f"{url}/v1/models")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(POLL_S)
    raise RequestFailed("the server was not ready in time")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def report(starts: Sequence[Start], console: Console) -> dict[str, Any]:
    """Print the table; return the figures."""
    found = {
        "ready_s": summed([start.ready_s for start in starts]),
        "first_answer_s": summed([start.first_answer_s for start in starts]),
    }
    table = Table(title="seconds from the start of the process", padding=(0, 1))
    for name in ("until", "median", "+/-"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, words in (("ready_s", "ready"), ("first_answer_s", "first answer with a chart")):
        table.add_row(words, f"{found[name]['median']:.2f}", f"{found[name]['spread']:.2f}")
    console.print(table)
    return found


def run(plan: Plan, devices: Sequence[str] = (), measure_one: Callable[[Plan], Any] = measure) -> str:
    """Measure and print; returns the JSON line. The first start counts too: a fresh process is what is asked for."""
    console = Console(stderr=True)
    starts = []
    with console.status("") as status:
        for number in range(plan.repeats):
            status.update(f"start {number + 1} of {plan.repeats}")
            starts.append(asyncio.run(measure_one(plan)))
    return line({"bench": "start", **report(starts, Console())}, devices)
