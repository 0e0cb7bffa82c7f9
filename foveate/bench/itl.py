"""Gaps between tokens of text streams while a request with many images arrives, by where the encoder is.

Owns the measurement: `streams` text requests decode; after a while a request with `images` new pictures comes in, and
the gaps of all streams are sorted into those before it was sent (idle) and those that end between its sending and its
first token (busy). Says p50 and p99 of both, and their ratio. Prints a table, then one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from foveate.bench.arms import Open, Subject, arms_of, devices_of, floor_of
from foveate.bench.asking import Question, Shot, Target
from foveate.bench.charts import painter
from foveate.bench.record import line, percentile, share, summed
from foveate.core.errors import RequestFailed
from foveate.core.work import Peak, Work, step_s

ENDLESS = 10**9  # pieces


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: text streams, images of the request that disturbs them, pieces between disturbances, rounds.

    quiet: how many pieces each stream gives before the request is sent, and after its first token before the next
    round. most: tokens that a stream may have.
    """

    streams: int = 32
    images: int = 16
    repeats: int = 3
    quiet: int = 50
    pictures: str = "charts"
    arms: tuple[str, ...] = ()
    most: int = 4096


@dataclass(slots=True)
class Gaps:
    """What one arm gave: gaps in seconds by kind, and the disturbing request's own time to its first token."""

    idle: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


class Streams:
    """Text requests under way on one target; counts pieces, so that a measurement waits for tokens and not for time."""

    def __init__(self, target: Target, count: int, tokens: int) -> None:
        self._shots: dict[int, Shot] = {}
        self._goals: dict[int, int] = {}  # pieces that a stream shall have, where it has fewer
        self._reached = asyncio.Event()
        questions = [Question(f"Tell a long story about number {i}.", (), tokens) for i in range(count)]
        self._tasks = [
            asyncio.create_task(target.ask(question, lambda shot, i=i: self._hear(i, shot)))  # type: ignore[misc]
            for i, question in enumerate(questions)
        ]

    def _hear(self, number: int, shot: Shot) -> None:
        """Runs at every piece, so it does next to nothing: what it takes from the loop would be measured."""
        self._shots[number] = shot
        if len(shot.stamps) >= self._goals.get(number, ENDLESS):
            del self._goals[number]
            if not self._goals:
                self._reached.set()

    async def advance(self, pieces: int) -> None:
        """Wait until every stream has given so many more pieces. Raises RequestFailed when one ends before."""
        self._reached.clear()
        for i in range(len(self._tasks)):
            self._goals[i] = pieces + (len(self._shots[i].stamps) if i in self._shots else 0)
        reached = asyncio.create_task(self._reached.wait())
        await asyncio.wait([reached, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        if not reached.done():
            reached.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()  # raises what it failed with
            raise RequestFailed("a text stream ended before the measurement did: give it more tokens")

    def gaps(self, since_s: float, until_s: float) -> list[float]:
        """Gaps that end between these two times."""
        pairs = (pair for shot in self._shots.values() for pair in itertools.pairwise(shot.stamps))
        return [later - earlier for earlier, later in pairs if since_s < later <= until_s]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(open_target: Open, plan: Plan, say: Callable[[str], None]) -> Gaps:
    """One arm: idle, disturbed, and again."""
    draw, _ = painter(plan.pictures)
    seeds, found = itertools.count(700_000), Gaps()

    def disturbing() -> Question:
        return Question("Compare the pictures.", tuple(draw(next(seeds)) for _ in range(plan.images)))

    target = await open_target()
    try:
        say("warming up")
        await target.ask(disturbing())
        streams = Streams(target, plan.streams, plan.most)
        try:
            await streams.advance(plan.quiet)  # prefill of the streams themselves, and a first breath
            for number in range(plan.repeats):
                say(f"round {number + 1} of {plan.repeats}")
                question, quiet_s = disturbing(), time.monotonic()
                await streams.advance(plan.quiet)
                shot = await target.ask(question)
                found.idle += streams.gaps(quiet_s, shot.began_s)
                found.busy += streams.gaps(shot.began_s, shot.stamps[0])
                found.first_token_s.append(shot.first_token_s)
        finally:
            await streams.end()
        return found
    finally:
        await target.aclose()


def figures(gaps: Gaps, plan: Plan, floor: tuple[Work, Peak] | None) -> dict[str, Any]:
    """Milliseconds: p50 and p99 idle and busy, the ratio of the p99s, and the least that a step can take."""
    out: dict[str, Any] = {}
    for kind, values in (("idle", gaps.idle), ("busy", gaps.busy)):
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            out[f"{kind}_{name}_ms"] = round(1e3 * percentile(values, part), 3) if values else None
    if gaps.idle and gaps.busy:
        out["p99_ratio"] = round(percentile(gaps.busy, 0.99) / percentile(gaps.idle, 0.99), 3)
    if floor is not None:
        least_s = step_s(*floor, plan.streams)
        out |= {"floor_ms": round(1e3 * least_s, 3), "share_of_floor": share(1e3 * least_s, out["idle_p50_ms"])}
    return out | {"gaps": [len(gaps.idle), len(gaps.busy)], "first_token_s": summed(gaps.first_token_s)}


def report(found: dict[str, Gaps], plan: Plan, floor: tuple[Work, Peak] | None, console: Console) -> dict[str, Any]:
    """Print the table; return the figures by arm."""
    rows = {arm: figures(gaps, plan, floor) for arm, gaps in found.items()}
    title = f"gaps of {plan.streams} text streams in ms; busy: while {plan.images} images come in"
    table = Table(title=title, padding=(0, 1))
    names = ["idle_p50_ms", "idle_p99_ms", "busy_p50_ms", "busy_p99_ms", "p99_ratio", *(["floor_ms"] if floor else [])]
    for name in ("", *names, "first token s"):
        table.add_column(name.removesuffix("_ms").replace("_", " "), justify="right")
    for arm, row in rows.items():
        cells = [f"{row[name]:.2f}" if row.get(name) is not None else "" for name in names]
        table.add_row(arm.replace("_", " "), *cells, f"{row['first_token_s']['median']:.3f}")
    console.print(table)
    return {"streams": plan.streams, "images": plan.images, "arms": rows}


def run(subject: Subject, plan: Plan) -> str:
    """Measure and print; returns the JSON line. Progress goes to the standard error."""
    console, floor = Console(stderr=True), floor_of(subject)
    slots = max(subject.settings.max_concurrency, plan.streams + 1)
    subject = replace(subject, settings=replace(subject.settings, max_concurrency=slots))
    found = {}
    with console.status("") as status:
        for arm, open_target in arms_of(subject, plan.arms).items():
            found[arm] = asyncio.run(measure(open_target, plan, lambda text, arm=arm: status.update(f"{arm}: {text}")))  # type: ignore[misc]
    return line({"bench": "itl", **report(found, plan, floor, Console())}, devices_of(subject))
