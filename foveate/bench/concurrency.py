"""Image requests at once against the same ones one after another, and more requests than slots, in one run.

Owns the measurement: one engine answers `at_once` questions about different pictures together and one by one, in turn,
so that a drifting machine drifts for both; then `queued` of them arrive together at fewer slots. Says whether every
answer is the text that its question gets alone, and how many pictures went to the encoder (one a request). Prints a
table, then one JSON line.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from rich.table import Table

from foveate.bench.asking import Offline, Question, Target
from foveate.bench.decode import descriptions
from foveate.core.config import Settings
from foveate.core.errors import ConfigError, FoveateError
from foveate.engine.build import open_engine
from foveate.service.service import Service

Asked = tuple[str, bytes]  # a question and the picture it is about


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: requests at once, requests that queue for so many slots, measured rounds, longest answer."""

    at_once: int = 4
    queued: int = 6
    slots: int = 4
    repeats: int = 3
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Shot:
    """One answer: its text and tokens, and the seconds since its group was sent to its first and last token."""

    text: str
    tokens: int
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that were sent together or in a row: their answers, None where one was refused, and the whole span."""

    shots: tuple[Shot | None, ...]
    seconds: float
    encodes: int  # pictures that went to the encoder meanwhile

    @property
    def texts(self) -> list[str | None]:
        return [None if shot is None else shot.text for shot in self.shots]

    @property
    def rate(self) -> float:
        """Tokens a second over the whole span."""
        return sum(shot.tokens for shot in self.shots if shot is not None) / self.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """Measured groups: rounds of both arms, the one with more requests than slots, and its further questions alone."""

    together: list[Group]
    in_turn: list[Group]
    queued: Group
    further: Group


def questions(count: int) -> list[Asked]:
    """Questions for descriptions of different pictures, from the bundled set. Raises ConfigError for too many."""
    asked = list({picture: (question, picture) for question, picture in descriptions(100)}.values())
    if count > len(asked):
        raise ConfigError(f"there are {len(asked)} different pictures to ask about, not {count}")
    return asked[:count]


def fresh(asked: Sequence[Asked], marks: Iterator[int]) -> list[Asked]:
    """The same pixels in files never sent before, so that each costs an encode."""
    out = []
    for question, picture in asked:
        note, file = PngInfo(), io.BytesIO()
        note.add_text("bench", str(next(marks)))
        Image.open(io.BytesIO(picture)).save(file, "PNG", pnginfo=note)
        out.append((question, file.getvalue()))
    return out


async def shoot(target: Target, asked: Asked, max_tokens: int, began_s: float) -> Shot | None:
    """One answer, None when the request was refused or failed."""
    try:
        shot = await target.ask(Question(asked[0], (asked[1],), max_tokens, may_end=True))
    except FoveateError:
        return None
    first_s = shot.stamps[0] - began_s if shot.stamps else 0.0  # nothing but an end
    return Shot(shot.text, shot.tokens, first_s, shot.ended_s - began_s)


async def together(service: Service, group: Sequence[Asked], plan: Plan) -> Group:
    """All requests of a group at once."""
    began_s, encodes = time.monotonic(), service.engine.loop.encodes
    shots = await asyncio.gather(*(shoot(Offline(service), asked, plan.max_tokens, began_s) for asked in group))
    return Group(tuple(shots), time.monotonic() - began_s, service.engine.loop.encodes - encodes)


async def in_turn(service: Service, group: Sequence[Asked], plan: Plan) -> Group:
    """Each request of a group when the one before has ended."""
    began_s, encodes = time.monotonic(), service.engine.loop.encodes
    shots = [await shoot(Offline(service), asked, plan.max_tokens, began_s) for asked in group]
    return Group(tuple(shots), time.monotonic() - began_s, service.engine.loop.encodes - encodes)


async def measure(model: str, settings: Settings, plan: Plan, say: Callable[[str], None]) -> Found:
    """Both arms in turn, then the queue."""
    asked = questions(max(plan.at_once, plan.queued))
    say("opening the model")
    service, marks = Service(open_engine(model, replace(settings, max_concurrency=plan.slots))), itertools.count()
    arms: dict[str, list[Group]] = {"together": [], "in_turn": []}
    try:
        for number in range(plan.repeats + 1):
            say(f"{plan.at_once} requests, round {number} of {plan.repeats}")
            # The order alternates, so that neither arm is always the one with the warmer machine.
            for arm in ("together", "in_turn") if number % 2 else ("in_turn", "together"):
                ask = together if arm == "together" else in_turn
                group = await ask(service, fresh(asked[: plan.at_once], marks), plan)
                if number:  # the first round warms up
                    arms[arm].append(group)
        say(f"{plan.queued} requests on {plan.slots} slots")
        further = await in_turn(service, fresh(asked[plan.at_once : plan.queued], marks), plan)
        queued = await together(service, fresh(asked[: plan.queued], marks), plan)
        return Found(arms["together"], arms["in_turn"], queued, further)
    finally:
        await service.aclose()


def figures(found: Found, plan: Plan) -> dict[str, Any]:
    """The numbers of the JSON line; times are medians over the rounds."""
    want = found.in_turn[0].texts + found.further.texts  # each question's answer alone
    at_once_s, one_by_one_s = (statistics.median(g.seconds for g in arm) for arm in (found.together, found.in_turn))
    times = [(shot.first_s, shot.last_s) for shot in found.queued.shots if shot is not None]
    rates = [statistics.median(group.rate for group in arm) for arm in (found.together, found.in_turn)]
    return {
        "requests": plan.at_once,
        "at_once_s": round(at_once_s, 3),
        "one_by_one_s": round(one_by_one_s, 3),
        "speedup": round(one_by_one_s / at_once_s, 3),
        "at_once_tok_s": round(rates[0], 2),
        "one_by_one_tok_s": round(rates[1], 2),
        "identical": all(group.texts == want[: plan.at_once] for group in found.together),
        "encodes": max(group.encodes for group in (*found.together, *found.in_turn)),
        "queue": {
            "requests": plan.queued,
            "slots": plan.slots,
            "answered": len(times),
            "identical": found.queued.texts == want[: plan.queued],
            "encodes": found.queued.encodes,
            "first_token_s": [round(first, 3) for first, _ in times],
            "done_s": [round(last, 3) for _, last in times],
        },
    }


def report(found: Found, plan: Plan, console: Console) -> str:
    """Print the table; return the JSON line."""
    line = figures(found, plan)
    table = Table(title="image requests, from pictures to the last token", padding=(0, 1))
    for column in ("requests", "seconds", "tokens/s", "answered", "encodes", "as alone"):
        table.add_column(column, justify="right", no_wrap=True)
    same = ["yes" if part["identical"] else "NO" for part in (line, line["queue"])]
    count, encodes, queue = str(plan.at_once), str(line["encodes"]), line["queue"]
    for arm, name, told in (("at_once", "at once", same[0]), ("one_by_one", "in turn", "")):
        figure = (f"{line[f'{arm}_s']:.2f}", f"{line[f'{arm}_tok_s']:.1f}")
        table.add_row(f"{count} {name}", *figure, count, encodes, told)
    last = (f"{found.queued.seconds:.2f}", f"{found.queued.rate:.1f}")
    verdict = (str(queue["answered"]), str(queue["encodes"]), same[1])
    table.add_row(f"{plan.queued} on {plan.slots} slots", *last, *verdict)
    console.print(table)
    return json.dumps(line)


def run(model: str, settings: Settings, plan: Plan) -> str:
    """Measure and print; returns the JSON line. Progress goes to the standard error."""
    console = Console(stderr=True)
    with console.status("") as status:
        found = asyncio.run(measure(model, settings, plan, status.update))
    return report(found, plan, Console())
