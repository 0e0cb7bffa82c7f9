"""A long soak of a real server: mixed text and image load with random leavers at several times what it can take.

Owns the load, the watch and the verdict. The server is `foveate serve` in a process of its own; a second process polls
/health ten times a second and samples the memory of the server and its children, so that a busy client does not
falsify them. Ends with one JSON line; exit code 0 only if every request ended exactly once, memory stayed flat after
the warm-up, /health answered within 200 ms at the 99th percentile and the server stopped cleanly.

    python bench/soak.py --model demo --minutes 10 --out bench/results/soak-2026-01-31.json
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parent.parent
SLOTS, QUEUE = 4, 8
SERVER = ("--max-concurrency", str(SLOTS), "--queue-requests", str(QUEUE), "--log-level", "warning")
PICTURES = 48
HEALTH_LIMIT_MS = 200.0
GROWTH_LIMIT = 1.05  # of memory, from the first minute after the warm-up to the last minute
QUESTIONS = ("Which bar is the highest?", "Describe the picture.", "How many parts are there?", "What is the total?")


# ------------------------------------------------------------------ the watch


def memory_mib(pid: int) -> float:
    """Resident memory of a process and all below it."""
    total = 0
    for one in family(pid):
        try:
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
    return total / 1024


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def watch(url: str, pid: int) -> None:
    """Until told to stop: a line for each /health poll and, every second, for the memory."""
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    with httpx.Client(base_url=url, timeout=30) as client:
        next_s = time.monotonic()
        for tick in range(10**9):
            if not running:
                break
            began = time.monotonic()
            try:
                ok = client.get("/health").status_code == 200
            except httpx.HTTPError:
                ok = False
            line: dict[str, Any] = {"ms": (time.monotonic() - began) * 1e3, "ok": ok, "at": began}
            if tick % 10 == 0:
                line["mib"] = memory_mib(pid)
            print(json.dumps(line), flush=True)
            next_s = max(next_s + 0.1, time.monotonic())
            time.sleep(next_s - time.monotonic() if next_s > time.monotonic() else 0.0)


# ------------------------------------------------------------------- the load


def draw_picture(seed: int) -> str:
    """A data URL of bars in random colours and sizes."""
    rng = random.Random(seed)
    size = (rng.choice((64, 160, 320, 640)), rng.choice((64, 128, 256, 448)))
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    for bar in range(8):
        colour = tuple(rng.randrange(256) for _ in range(3))
        left = bar * size[0] // 8
        pen.rectangle((left, rng.randrange(size[1]), left + size[0] // 10, size[1]), fill=colour)
    out = io.BytesIO()
    image.save(out, "JPEG" if seed % 3 else "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


@dataclass
class Tally:
    """What became of the requests; `wrong` are those that did not end exactly once."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def end(self, outcome: str, code: str = "") -> None:
        self.outcomes[outcome] += 1
        if code:
            self.errors[code] += 1


@dataclass
class Wish:
    """One request to make; `leaves_s` is when its client closes the connection, if it does."""

    body: dict[str, Any]
    leaves_s: float | None


def make_wish(rng: random.Random, pictures: list[str]) -> Wish:
    """Half text, half with pictures; half streamed; every fifth leaves; a few are broken or too long."""
    shown = [rng.choice(pictures) for _ in range(rng.randint(1, 4))] if rng.random() < 0.5 else []
    text = rng.choice(QUESTIONS)
    kind = rng.random()
    if kind < 0.03 and shown:
        head, _, data = shown[-1].partition(",")
        shown[-1] = f"{head},{data[: len(data) // 8 * 4]}"  # its header is sound, its pixels are cut off
    elif kind < 0.05:
        text = "word " * 40_000
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in shown]
    body = {
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
        "max_tokens": rng.randint(4, 64),
        "n": 2 if rng.random() < 0.1 else 1,
        "stream": rng.random() < 0.5,
        "seed": rng.randrange(1000),
    }
    return Wish(body, rng.random() * 3 if rng.random() < 0.2 else None)


async def ask(client: httpx.AsyncClient, wish: Wish, tally: Tally) -> float:
    """Make one request and tally its end; the seconds that the server asked to wait."""
    try:
        async with asyncio.timeout(wish.leaves_s), client.stream("POST", "/v1/chat/completions", json=wish.body) as got:
            text = (await got.aread()).decode()
    except TimeoutError:
        tally.end("left")
        return 0.0
    except httpx.HTTPError as error:
        tally.end("broken", type(error).__name__)
        tally.wrong.append(f"connection: {error!r}")
        return 1.0
    if got.status_code != 200:
        tally.end(f"refused {got.status_code}", json.loads(text)["error"]["code"])
        return float(got.headers.get("retry-after", 0))
    fault = fault_of_stream(text, wish) if wish.body["stream"] else fault_of_whole(text, wish)
    if fault:
        tally.wrong.append(fault)
    tally.end("wrong" if fault else "completed")
    return 0.0


def fault_of_stream(text: str, wish: Wish) -> str:
    """What is wrong with a stream of events; nothing if each choice ended once and the end mark came once, last."""
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    if lines.count("[DONE]") != 1 or lines[-1] != "[DONE]":
        return f"stream without its one end: {lines[-1][:200] if lines else 'empty'}"
    ends = Counter(
        choice["index"]
        for line in lines[:-1]
        for choice in json.loads(line).get("choices", ())
        if choice["finish_reason"]
    )
    return "" if ends == dict.fromkeys(range(wish.body["n"]), 1) else f"ends of choices: {dict(ends)}"


def fault_of_whole(text: str, wish: Wish) -> str:
    """What is wrong with a whole answer."""
    choices = json.loads(text)["choices"]
    sound = len(choices) == wish.body["n"] and all(choice["finish_reason"] for choice in choices)
    return "" if sound else f"{len(choices)} choices"


async def load(url: str, minutes: float, overload: int, seed: int) -> Tally:
    """Keep `overload` times as many clients at it as run and wait together, until the time is over."""
    pictures, tally = [draw_picture(i) for i in range(PICTURES)], Tally()
    end_s = time.monotonic() + minutes * 60

    async def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            while time.monotonic() < end_s:
                wait_s = await ask(http, make_wish(rng, pictures), tally)
                await asyncio.sleep(min(wait_s, 2.0) * rng.random())

    await asyncio.gather(*(client(number) for number in range(overload * (SLOTS + QUEUE))))
    return tally


# ---------------------------------------------------------------- the verdict


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def health_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    times = [line["ms"] for line in lines]
    out = {f"p{round(share * 100)}_ms": round(percentile(times, share), 1) for share in (0.5, 0.9, 0.99)}
    return {"polls": len(times), **out, "max_ms": round(max(times), 1), "not_ok": sum(not line["ok"] for line in lines)}


def memory_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over a minute (or a tenth of the time): after the warm-up, a fifth of the time, and at the end."""
    samples = [(line["at"], line["mib"]) for line in lines if "mib" in line]
    begin_s, end_s = samples[0][0], samples[-1][0]
    span_s = min(60.0, (end_s - begin_s) / 10)
    warm_s = begin_s + (end_s - begin_s) / 5
    warm = median(mib for at, mib in samples if warm_s <= at <= warm_s + span_s)
    late = median(mib for at, mib in samples if at >= end_s - span_s)
    minutes: dict[int, list[float]] = {}
    for at, mib in samples:
        minutes.setdefault(int((at - begin_s) // 60), []).append(mib)
    return {
        "start_mib": round(samples[0][1]),
        "warm_mib": round(warm),
        "end_mib": round(late),
        "peak_mib": round(max(mib for _, mib in samples)),
        "growth": round(late / warm, 4),
        "by_minute_mib": [round(median(values)) for _, values in sorted(minutes.items())],
    }


def at_rest(url: str) -> bool:
    """Whether the server is idle and holds nothing, within half a minute."""
    for _ in range(300):
        numbers = dict(
            line.rsplit(" ", 1) for line in httpx.get(url + "/metrics").text.splitlines() if not line.startswith("#")
        )
        held = [value for name, value in numbers.items() if name.partition("{")[0] in HELD]
        if len(held) == len(HELD) and not any(float(value) for value in held):
            return True
        time.sleep(0.1)
    return False


HELD = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "foveate:kv_pages_used",
    "foveate:state_slots_used",
    "foveate:image_rows_held",
)


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Start the server, run the load under watch, stop it; the record."""
    command = [sys.executable, "-m", "foveate.cli", "serve", options.model, "--port", "0", *SERVER]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip().rpartition(" ")[2]
        watcher = [sys.executable, __file__, "--watch", url, "--pid", str(server.pid)]
        with subprocess.Popen(watcher, text=True, stdout=subprocess.PIPE) as eye:
            reader = asyncio.to_thread(eye.communicate)

            async def both() -> tuple[Tally, str]:
                seen = asyncio.create_task(reader)
                tally = await load(url, options.minutes, options.overload, options.seed)
                eye.terminate()
                return tally, (await seen)[0]

            tally, text = asyncio.run(both())
        idle = at_rest(url)
        server.terminate()
        server.wait(60)
    lines = [json.loads(line) for line in text.splitlines()]
    return {
        "minutes": options.minutes,
        "overload": options.overload,
        "requests": sum(tally.outcomes.values()),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "errors": dict(sorted(tally.errors.items())),
        "ended_exactly_once": not tally.wrong,
        "wrong": tally.wrong[:10],
        "memory": memory_of(lines),
        "health": health_of(lines),
        "at_rest_afterwards": idle,
        "exit_code": server.returncode,
    }


def passed(record: dict[str, Any]) -> bool:
    """The verdict."""
    health, memory = record["health"], record["memory"]
    return (
        record["ended_exactly_once"]
        and memory["growth"] <= GROWTH_LIMIT
        and health["p99_ms"] < HEALTH_LIMIT_MS
        and not health["not_ok"]
        and record["at_rest_afterwards"]
        and record["exit_code"] == 0
    )


def machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="what to serve: demo, a checkpoint folder or a hub id")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the load lasts")
    parser.add_argument("--overload", type=int, default=3, help="clients per request that runs or waits")
    parser.add_argument("--seed", type=int, default=1, help="of the load")
    parser.add_argument("--out", type=Path, help="file for the record")
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch:
        return watch(options.watch, options.pid)
    before = machine()
    record = {"date": date.today().isoformat(), "machine": before, "command": " ".join(sys.argv), **soak(options)}
    record["passed"] = passed(record)
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
    sys.exit(0 if record["passed"] else 1)


if __name__ == "__main__":
    main()
