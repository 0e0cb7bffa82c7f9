"""Where should the vision encoder run? Step jitter of a running text stream while images are encoded, by placement.

Owns the measurement behind docs/adr/0004: one request decodes, a second with eight new pictures arrives, and the gaps
between the first one's tokens are taken: idle, and while the encoder works inline, on a thread, and in a process of its
own. Prints a table, then one JSON line.

    python bench/encoder_placement.py demo
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time

from foveate.bench.asking import Offline, Question
from foveate.bench.charts import chart_png
from foveate.core.chat import ChatRequest, TextDelta, Wishes
from foveate.core.config import Settings
from foveate.engine.build import open_engine
from foveate.service.service import Service

ARMS = {
    "inline": Settings(mmproj_device="same", draft="none"),
    "thread": Settings(mmproj_device="cpu", encoder_worker="thread", draft="none"),
    "process": Settings(mmproj_device="cpu", encoder_worker="process", draft="none"),
}
ROUNDS, PICTURES = 3, 8


async def gaps_of(service: Service, until: asyncio.Event, stamps: list[float]) -> None:
    """Decode without end; note when each token came."""
    wishes = Wishes(temperature=0, max_tokens=4000, ignore_eos=True)
    answer = await service.chat(ChatRequest(({"role": "user", "content": "Describe the chart."},), (), wishes))
    async for part in answer.parts():
        if isinstance(part, TextDelta):
            stamps.append(time.monotonic())
        if until.is_set():
            break
    await answer.aclose()


async def measure(arm: str, settings: Settings, seeds: itertools.count[int]) -> dict[str, float]:
    service = Service(open_engine("demo", settings))
    idle: list[float] = []
    busy: list[float] = []
    first: list[float] = []
    try:
        for round_number in range(ROUNDS + 1):
            stop, stamps = asyncio.Event(), []
            stream = asyncio.create_task(gaps_of(service, stop, stamps))
            await asyncio.sleep(1.0)
            began_s = time.monotonic()
            pictures = tuple(chart_png(next(seeds)) for _ in range(PICTURES))
            shot = await Offline(service).ask(Question("Compare the charts.", pictures))
            ended_s = time.monotonic()
            stop.set()
            await stream
            if round_number:  # the first round warms up
                pairs = list(itertools.pairwise(stamps))
                idle += [b - a for a, b in pairs if b < began_s]
                busy += [b - a for a, b in pairs if began_s <= b <= ended_s]
                first.append(shot.first_token_s)
    finally:
        await service.aclose()
    return {
        "idle_p50_ms": 1e3 * statistics.median(idle),
        "busy_p50_ms": 1e3 * statistics.median(busy),
        "busy_p99_ms": 1e3 * statistics.quantiles(busy, n=100)[98],
        "busy_max_ms": 1e3 * max(busy),
        "first_token_s": statistics.median(first),
    }


def main() -> None:
    seeds = itertools.count(900_000)
    results = {arm: asyncio.run(measure(arm, settings, seeds)) for arm, settings in ARMS.items()}
    for arm, numbers in results.items():
        print(f"{arm:8}", "  ".join(f"{name} {value:.2f}" for name, value in numbers.items()), file=sys.stderr)
    print(json.dumps({arm: {k: round(v, 3) for k, v in numbers.items()} for arm, numbers in results.items()}))


if __name__ == "__main__":
    main()
