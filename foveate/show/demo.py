"""What `make demo` shows: a real server on the bundled model, asked over HTTP about bundled charts.

Owns the tour: start the server on a free port, ask, stream each answer, print expected beside given, draw the timeline
of the request with several images, and say in one line whether everything was right. Exit code 0 means it was. The
server always ends with the tour.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from foveate.evals.score import is_right
from foveate.show.timeline import timeline

DEMO = Path(__file__).resolve().parent.parent / "demo"
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Stop:
    """One request of the tour: pictures (files below the demo folder), question, the right answer."""

    images: tuple[str, ...]
    question: str
    answer: str
    numeric: bool

    def right(self, given: str) -> bool:
        return is_right(given, self.answer, self.numeric)


@dataclass(frozen=True, slots=True)
class Given:
    """What the server answered."""

    text: str
    timings: dict[str, Any]
    seconds: float


def read_tour() -> list[Stop]:
    """The bundled tour."""
    lines = (DEMO / "tour.jsonl").read_text("utf-8").splitlines()
    return [Stop(tuple(s["images"]), s["question"], s["answer"], s["numeric"]) for s in map(json.loads, lines)]


def run(port: int) -> int:
    """Take the tour; the exit code."""
    console = Console()
    console.print(Text("Starting a server on the bundled model ...", style="dim"))
    began_s = time.monotonic()
    with _server(port) as url:
        console.print(Text(f"ready at {url} after {time.monotonic() - began_s:.1f} s", style="dim"))
        with httpx.Client(base_url=url, timeout=120) as client:
            results = [(stop, _visit(client, stop, console)) for stop in read_tour()]
    return _verdict(results, console)


@contextlib.contextmanager
def _server(port: int) -> Iterator[str]:
    """A server process; its URL. It is ended whatever happens, and its log is shown if it did not start."""
    # On one CPU the encoder gets cores of its own, whatever the default there: the tour is about what streams.
    place = [] if shutil.which("nvidia-smi") else ["--mmproj-device", "cpu"]
    # The tour asks about some pictures twice, and is there to show encoding.
    command = [sys.executable, "-m", "foveate.cli", "serve", "demo", "--port", str(port), "--no-image-cache", *place]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield _wait_for_url(process, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _wait_for_url(process: subprocess.Popen[str], log: Any) -> str:
    assert process.stdout is not None
    for line in process.stdout:  # ends when the server says where it is, or ends
        if " at http" in line:
            return line.rsplit(" at ", 1)[1].strip()
    process.wait(timeout=START_S)
    log.seek(0)
    raise SystemExit(f"the server did not start (exit code {process.returncode}):\n{log.read()[-4000:]}")


def _visit(client: httpx.Client, stop: Stop, console: Console) -> Given:
    """Ask, print the answer as it streams, then the comparison; the timeline where there are several images."""
    console.print(Rule(f"{len(stop.images)} picture(s): {', '.join(Path(name).stem for name in stop.images)}"))
    console.print(Text("question  ", style="bold").append(stop.question, style="not bold"))
    console.print(Text("answer    ", style="bold"), end="")
    began_s, text, timings = time.monotonic(), "", {}
    for chunk in _stream(client, stop):
        for choice in chunk.get("choices", []):
            piece = choice["delta"].get("content") or ""
            text += piece
            console.print(Text(piece), end="")
        timings = chunk.get("timings") or timings
    given = Given(text, timings, time.monotonic() - began_s)
    right = stop.right(text)
    console.print()
    console.print(Text("expected  ", style="bold").append(stop.answer, style="not bold"), _mark(right))
    if len(stop.images) > 1:
        console.print(timeline(timings))
    return given


def _stream(client: httpx.Client, stop: Stop) -> Iterator[dict[str, Any]]:
    """The chunks of a streamed chat completion."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": _data_url(DEMO / name)}} for name in stop.images
    ]
    parts.append({"type": "text", "text": stop.question})
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": 200,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"the server answered {response.status_code}: {response.read().decode()[:500]}")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def _data_url(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _mark(right: bool) -> Text:
    return Text(" right", style="green") if right else Text(" WRONG", style="bold red")


def _verdict(results: list[tuple[Stop, Given]], console: Console) -> int:
    wrong = [(stop, given) for stop, given in results if not stop.right(given.text)]
    console.print(Rule())
    for stop, given in wrong:
        console.print(Text(f"wrong: {stop.question} expected {stop.answer}, given {given.text}", style="bold red"))
    encode_s, hidden_s = (sum(g.timings.get(name, 0.0) for _, g in results) for name in ("encode_s", "hidden_s"))
    right = f"{len(results) - len(wrong)} of {len(results)} answers are right"
    console.print(Text(right, style="bold red" if wrong else "bold green"), end="; ")
    console.print(Text(f"of {encode_s:.1f} s of encoding, {hidden_s:.1f} s were hidden under prefill"))
    return 1 if wrong else 0
