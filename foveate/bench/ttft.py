"""Time to first token over the image ladder, three arms in one run.

Owns the measurement: the encoder on its own device streamed, the same placement sequential, and the encoder on the
model's device, interleaved so that a drifting machine drifts for all. Also owns the arithmetic of the bound
e + (N-1)*max(e, p) + p, with e and p per image taken from the sequential arm, where neither disturbs the other. Every
request shows new pictures. Prints a table, then one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from foveate.bench.charts import chart_png, data_url
from foveate.core.chat import ChatRequest, ChoiceEnd, ImageSource, TextDelta, Wishes
from foveate.core.config import Settings
from foveate.core.values import Timings
from foveate.engine.build import open_engine, read_model
from foveate.service.service import Service

ARMS = ("streamed", "sequential", "same_device")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: numbers of images, measured repetitions after one warm-up, picture size in pixels."""

    ladder: tuple[int, ...] = (1, 4, 8, 16)
    repeats: int = 5
    width: int = 640
    height: int = 448


@dataclass(frozen=True, slots=True)
class Shot:
    """One measured request."""

    first_token_s: float
    timings: Timings


@dataclass(frozen=True, slots=True)
class Rung:
    """Medians at one number of images, in seconds; `spread_s` is half the range of the streamed arm."""

    streamed_s: float
    sequential_s: float
    same_device_s: float
    encode_s: float
    prefill_s: float
    waited_s: float
    hidden_s: float
    bound_s: float
    overlap_share: float | None  # None with one image: there is nothing to overlap with
    prompt_tokens: int
    spread_s: float


def bound(images: int, encode_s: float, prefill_s: float) -> float:
    """The best that streaming can do with these totals: e + (N-1)*max(e, p) + p."""
    e, p = encode_s / images, prefill_s / images
    return e + (images - 1) * max(e, p) + p


def arms_of(model: str, settings: Settings) -> dict[str, Settings]:
    """Settings of the three arms; a separate encoder gets the same share of the machine in both placed arms.

    Where the settings put the encoder with the language model, "its own device" is its own share of that one: half of
    the cores of a CPU, a thread of its own on a GPU.
    """
    config = read_model(model, settings)[2]
    apart = settings if config.encoder_apart else replace(settings, mmproj_device=config.device)
    return {
        "streamed": replace(apart, encoder_stream=True),
        "sequential": replace(apart, encoder_stream=False),
        "same_device": replace(settings, mmproj_device="same"),
    }


async def shoot(service: Service, pictures: Sequence[bytes]) -> tuple[Shot, int]:
    """One request with these pictures; the shot, and its number of prompt tokens."""
    images = tuple(ImageSource(data_url(png), "bench") for png in pictures)
    parts: list[dict[str, object]] = [{"type": "image", "image": i} for i in range(len(images))]
    parts.append({"type": "text", "text": "Compare the charts."})
    message = {"role": "user", "content": parts}
    wishes = Wishes(temperature=0, max_tokens=1, ignore_eos=True)
    began_s, first_s, timings = time.monotonic(), None, Timings()
    answer = await service.chat(ChatRequest((message,), images, wishes))
    async for part in answer.parts():
        if isinstance(part, TextDelta) and part.tokens and first_s is None:
            first_s = time.monotonic()
        if isinstance(part, ChoiceEnd):
            timings = part.timings
    assert first_s is not None, "no token came"
    return Shot(first_s - began_s, timings), answer.prompt_tokens


async def measure(model: str, settings: Settings, plan: Plan, say: Callable[[str], None]) -> dict[int, Rung]:
    """All rungs of the ladder."""
    services: dict[str, Service] = {}
    seeds = itertools.count(1000)
    try:
        for arm, chosen in arms_of(model, settings).items():
            say(f"opening {arm}")
            services[arm] = Service(open_engine(model, chosen))
        rungs = {}
        for images in plan.ladder:
            shots: dict[str, list[Shot]] = {arm: [] for arm in ARMS}
            prompt_tokens = 0
            for repeat in range(plan.repeats + 1):
                say(f"{images} image(s), round {repeat} of {plan.repeats}")
                for arm in ARMS:
                    pictures = [chart_png(next(seeds), plan.width, plan.height) for _ in range(images)]
                    shot, prompt_tokens = await shoot(services[arm], pictures)
                    if repeat:  # the first round warms up
                        shots[arm].append(shot)
            rungs[images] = rung(images, shots, prompt_tokens)
        return rungs
    finally:
        for service in services.values():
            await service.aclose()


def rung(images: int, shots: dict[str, list[Shot]], prompt_tokens: int) -> Rung:
    """Medians of the arms, and what they say about the overlap."""

    def median(arm: str, value: Callable[[Shot], float]) -> float:
        return statistics.median(value(shot) for shot in shots[arm])

    streamed_s, sequential_s = (median(arm, lambda shot: shot.first_token_s) for arm in ("streamed", "sequential"))
    encode_s = median("sequential", lambda shot: shot.timings.encode_s)
    prefill_s = median("sequential", lambda shot: shot.timings.prefill_s)
    bound_s = bound(images, encode_s, prefill_s)
    times = [shot.first_token_s for shot in shots["streamed"]]
    return Rung(
        streamed_s=streamed_s,
        sequential_s=sequential_s,
        same_device_s=median("same_device", lambda shot: shot.first_token_s),
        encode_s=encode_s,
        prefill_s=prefill_s,
        waited_s=median("streamed", lambda shot: shot.timings.waited_s),
        hidden_s=median("streamed", lambda shot: shot.timings.hidden_s),
        bound_s=bound_s,
        overlap_share=(sequential_s - streamed_s) / (sequential_s - bound_s) if images > 1 else None,
        prompt_tokens=prompt_tokens,
        spread_s=(max(times) - min(times)) / 2,
    )


def report(rungs: dict[int, Rung], console: Console) -> str:
    """Print the table; return the JSON line."""
    table = Table(title="time to first token in seconds, medians", padding=(0, 0), pad_edge=False)
    columns = {
        "N": lambda r: "",
        "tokens": lambda r: str(r.prompt_tokens),
        "streamed": lambda r: f"{r.streamed_s:.3f}",
        "seq.": lambda r: f"{r.sequential_s:.3f}",
        "same": lambda r: f"{r.same_device_s:.3f}",
        "enc.": lambda r: f"{r.encode_s:.3f}",
        "pref.": lambda r: f"{r.prefill_s:.3f}",
        "waited": lambda r: f"{r.waited_s:.3f}",
        "hidden": lambda r: f"{r.hidden_s:.3f}",
        "bound": lambda r: f"{r.bound_s:.3f}",
        "/bound": lambda r: f"{r.streamed_s / r.bound_s:.2f}",
        "overlap": lambda r: "" if r.overlap_share is None else f"{r.overlap_share:.2f}",
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for images, r in rungs.items():
        table.add_row(str(images), *(show(r) for name, show in columns.items() if name != "N"))
    console.print(table)
    rounded = {n: {k: None if v is None else round(v, 4) for k, v in asdict(r).items()} for n, r in rungs.items()}
    return json.dumps({"images": rounded})


def run(model: str, settings: Settings, plan: Plan) -> str:
    """Measure and print; returns the JSON line. Progress goes to the standard error."""
    console = Console(stderr=True)
    with console.status("") as status:
        rungs = asyncio.run(measure(model, settings, plan, status.update))
    return report(rungs, Console())
