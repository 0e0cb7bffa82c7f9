"""Decoding with and without speculation, side by side in one run.

Owns the measurement: two engines on the same model, one with drafter and one without, describe the bundled charts in
turn, alone and in batches, so that a drifting machine drifts for both. The rate counts tokens after each answer's
first over the time from then on; `identical` says whether every answer is the same text. Prints a table, then one JSON
line.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foveate.bench.charts import data_url
from foveate.core.chat import ChatRequest, ChoiceEnd, ImageSource, TextDelta, Wishes
from foveate.core.config import Settings
from foveate.core.errors import ConfigError
from foveate.core.values import Timings
from foveate.engine.build import open_engine
from foveate.engine.checkpoint import DEMO
from foveate.service.service import Service

ARMS = ("plain", "speculative")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: descriptions per batch size, the sizes, the longest answer in tokens."""

    count: int = 24
    batches: tuple[int, ...] = (1, 8)
    max_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Shot:
    """One answer: its text, when its first and last token came, how many there were."""

    text: str
    first_s: float
    last_s: float
    tokens: int
    timings: Timings


@dataclass(slots=True)
class Tally:
    """What one arm did at one batch size."""

    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, shots: Sequence[Shot]) -> None:
        """A batch that ran together: its tokens after the first ones, from the earliest of these to its end."""
        self.texts += [shot.text for shot in shots]
        self.tokens += sum(shot.tokens - 1 for shot in shots)
        self.seconds += max(shot.last_s for shot in shots) - min(shot.first_s for shot in shots)
        self.steps += sum(shot.timings.decode_steps for shot in shots)
        self.drafted += sum(shot.timings.drafted for shot in shots)
        self.accepted += sum(sum(shot.timings.accepted) for shot in shots)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0


def descriptions(count: int) -> list[tuple[str, bytes]]:
    """Questions for a description with their pictures, from the bundled set; ConfigError for more than it has."""
    folder = DEMO / "eval"
    lines = (folder / "describe100.jsonl").read_text("utf-8").splitlines()
    if count > len(lines):
        raise ConfigError(f"there are {len(lines)} descriptions, {count} are asked for")
    rows = [json.loads(line) for line in lines[:count]]
    return [(row["question"], (folder / Path(row["images"][0])).read_bytes()) for row in rows]


async def shoot(service: Service, question: str, picture: bytes, max_tokens: int) -> Shot:
    """One description."""
    parts = [{"type": "image", "image": 0}, {"type": "text", "text": question}]
    message: dict[str, Any] = {"role": "user", "content": parts}
    wishes = Wishes(temperature=0, max_tokens=max_tokens)
    answer = await service.chat(ChatRequest((message,), (ImageSource(data_url(picture), "bench"),), wishes))
    text, first_s, tokens, timings = "", 0.0, 0, Timings()
    async for part in answer.parts():
        if isinstance(part, TextDelta):
            text += part.text
            first_s = first_s or time.monotonic()
        elif isinstance(part, ChoiceEnd):
            tokens, timings = part.tokens, part.timings
    last_s = time.monotonic()
    # The engine's own span is free of what text and events add; it ends when the answer does.
    return Shot(text, last_s - timings.generation_s if timings.generation_s else first_s, last_s, tokens, timings)


async def measure(
    model: str, settings: Settings, plan: Plan, say: Callable[[str], None]
) -> dict[int, dict[str, Tally]]:
    """The tallies of both arms at every batch size."""
    if settings.mmproj_device == "auto":  # nothing overlaps while decoding, so the model may have all threads
        settings = replace(settings, mmproj_device="same")
    arms = {"plain": replace(settings, draft="none"), "speculative": settings}
    asked, services, tallies = descriptions(plan.count), dict[str, Service](), dict[int, dict[str, Tally]]()
    try:
        for arm, chosen in arms.items():
            say(f"opening {arm}")
            services[arm] = Service(open_engine(model, chosen))
            await shoot(services[arm], *asked[0], plan.max_tokens)
        for size in plan.batches:
            tallies[size] = {arm: Tally() for arm in ARMS}
            for start in range(0, len(asked), size):
                group = asked[start : start + size]
                say(f"batch {size}, {start} of {len(asked)}")
                for arm in ARMS if (start // size) % 2 else ARMS[::-1]:
                    shots = await asyncio.gather(*(shoot(services[arm], *one, plan.max_tokens) for one in group))
                    tallies[size][arm].add(shots)
        return tallies
    finally:
        for service in services.values():
            await service.aclose()


def figures(pair: dict[str, Tally]) -> dict[str, Any]:
    """The numbers of one batch size."""
    plain, speculative = pair["plain"], pair["speculative"]
    return {
        "plain_tok_s": round(plain.rate, 2),
        "speculative_tok_s": round(speculative.rate, 2),
        "tokens_per_step": round(speculative.tokens_per_step, 3),
        "identical": plain.texts == speculative.texts,
        "speedup": round(speculative.rate / plain.rate, 3) if plain.rate else None,
        "accepted_share": round(speculative.accepted / speculative.drafted, 3) if speculative.drafted else None,
    }


def report(tallies: dict[int, dict[str, Tally]], console: Console) -> str:
    """Print the table; return the JSON line, whose leading figures are those of the first batch size."""
    found = {size: figures(pair) for size, pair in tallies.items()}
    table = Table(title="decoding, tokens a second", padding=(0, 1))
    for name in ("batch", "plain", "speculative", "speedup", "tokens/step", "accepted", "identical"):
        table.add_column(name, justify="right", no_wrap=True)
    for size, row in found.items():
        speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}"
        share = "" if row["accepted_share"] is None else f"{row['accepted_share']:.0%}"
        rates = (f"{row['plain_tok_s']:.1f}", f"{row['speculative_tok_s']:.1f}", speedup)
        same = "yes" if row["identical"] else "NO"
        table.add_row(str(size), *rates, f"{row['tokens_per_step']:.2f}", share, same)
    console.print(table)
    first = next(iter(found.values()))
    return json.dumps(first | {"batches": {str(size): row for size, row in found.items()}})


def run(model: str, settings: Settings, plan: Plan) -> str:
    """Measure and print; returns the JSON line. Progress goes to the standard error."""
    console = Console(stderr=True)
    with console.status("") as status:
        tallies = asyncio.run(measure(model, settings, plan, status.update))
    return report(tallies, Console())
