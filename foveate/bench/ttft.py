"""Time to first token over the image ladder, by where the encoder is, or of any server.

Owns the measurement and what it says of the overlap: e and p per image are taken from an arm where neither disturbs
the other, the bound is e + (N-1)*max(e, p) + p, and beside it stands the floor of the hardware where that is known.
Arms take turns with the same new pictures, so that a drifting machine drifts for all, and must answer alike. Where
memory holds one model at a time, they are opened one after another. Prints a table, then one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from foveate.bench.arms import Arms, Subject, arms_of, devices_of, floor_of
from foveate.bench.asking import Question, Shot, Target
from foveate.bench.charts import painter
from foveate.bench.record import line, share, summed
from foveate.core.work import Peak, Work, first_token_s, overlapped_s

TEXT = "Compare the charts."
FIRST_SEED = 1000
# Heads of the table's columns.
SHORT: Mapping[str, str] = MappingProxyType(
    {
        "sequential": "seq.",
        "second_stream": "2nd",
        "same_device": "same",
        "encode_s": "enc.",
        "prefill_s": "pref.",
        "bound_s": "bound",
        "streamed_over_bound": "/bound",
    }
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: numbers of images, measured rounds after one warm-up, kind and size of the pictures, arms.

    beside: all arms are open at once and take turns. tokens: of each answer; more make `identical` say more.
    """

    ladder: tuple[int, ...] = (1, 4, 8, 16)
    repeats: int = 3
    pictures: str = "charts"
    size: str = ""
    arms: tuple[str, ...] = ()
    beside: bool = True
    tokens: int = 1


@dataclass(slots=True)
class Rung:
    """Shots by arm at one number of images, in the order of the rounds."""

    images: int
    shots: dict[str, list[Shot]] = field(default_factory=dict)

    def median(self, arm: str, value: Callable[[Shot], float]) -> float:
        return statistics.median(value(shot) for shot in self.shots[arm])

    def first_s(self, arm: str) -> float:
        return self.median(arm, lambda shot: shot.first_token_s)

    def timing_s(self, arm: str, name: str) -> float:
        """The median of one of foveate's own timings."""
        return self.median(arm, lambda shot: shot.timings[f"{name}_s"])

    @property
    def calm(self) -> str | None:
        """The arm whose timings tell e and p: one where encoding and prefill do not run at once, and report them."""
        arms = (arm for arm in ("sequential", "same_device") if arm in self.shots)
        return next((arm for arm in arms if self.shots[arm][0].timings), None)


def questions(plan: Plan, images: int) -> list[Question]:
    """The requests of every round, the first to warm up; equal plans give equal ones."""
    draw, _ = painter(plan.pictures, plan.size)
    seeds = itertools.count(FIRST_SEED * (images + 1))
    rounds = range(plan.repeats + 1)
    return [Question(TEXT, tuple(draw(next(seeds)) for _ in range(images)), plan.tokens) for _ in rounds]


async def measure(arms: Arms, plan: Plan, say: Callable[[str], None]) -> list[Rung]:
    """All rungs of the ladder; every target that was opened is closed."""
    rungs = [Rung(images, {arm: [] for arm in arms}) for images in plan.ladder]
    for group in [list(arms)] if plan.beside else [[arm] for arm in arms]:
        targets: dict[str, Target] = {}
        try:
            for arm in group:
                say(f"opening {arm}")
                targets[arm] = await arms[arm]()
            for rung in rungs:
                await _climb(rung, targets, questions(plan, rung.images), say)
        finally:
            for target in targets.values():
                await target.aclose()
    return rungs


async def _climb(
    rung: Rung, targets: Mapping[str, Target], asked: Sequence[Question], say: Callable[[str], None]
) -> None:
    """One rung on the open targets, in turn; the first round warms up."""
    for number, question in enumerate(asked):
        say(f"{rung.images} image(s), round {number} of {len(asked) - 1}")
        for arm, target in targets.items():
            shot = await target.ask(question)
            if number:
                rung.shots[arm].append(shot)


def figures(rung: Rung, plan: Plan, floor: tuple[Work, Peak] | None) -> dict[str, Any]:
    """The numbers of one rung: seconds to the first token by arm, the overlap, the floor and how near the arms came."""
    shots = rung.shots
    prompt_len = next(iter(shots.values()))[0].prompt_tokens
    out: dict[str, Any] = {
        "prompt_tokens": prompt_len,
        "first_token_s": {arm: summed([shot.first_token_s for shot in taken]) for arm, taken in shots.items()},
        **{f"{arm}_s": round(rung.first_s(arm), 5) for arm in shots},
        "identical": len({tuple(shot.text for shot in taken) for taken in shots.values()}) == 1,
    }
    if rung.calm is not None:
        out |= _overlap(rung, rung.calm)
    if floor is not None:
        out |= _floors(rung, plan, prompt_len, floor)
    return out


def _overlap(rung: Rung, calm: str) -> dict[str, Any]:
    """What streaming could do with the calm arm's totals, and what it did."""
    encode_s, prefill_s = rung.timing_s(calm, "encode"), rung.timing_s(calm, "prefill")
    bound_s = overlapped_s(rung.images, encode_s, prefill_s)
    out: dict[str, Any] = {"encode_s": round(encode_s, 5), "prefill_s": round(prefill_s, 5)}
    out |= {"bound_s": round(bound_s, 5)}
    if "streamed" in rung.shots and rung.shots["streamed"][0].timings:
        streamed_s = rung.first_s("streamed")
        out |= {"streamed_over_bound": round(streamed_s / bound_s, 4)}
        out |= {f"{name}_s": round(rung.timing_s("streamed", name), 5) for name in ("hidden", "waited")}
        out |= {"hidden_share": share(rung.timing_s("streamed", "hidden"), rung.timing_s("streamed", "encode"))}
        if calm == "sequential" and rung.images > 1 and (room_s := rung.first_s(calm) - bound_s) > 0:
            out |= {"overlap_share": round((rung.first_s(calm) - streamed_s) / room_s, 4)}
    return out


def _floors(rung: Rung, plan: Plan, prompt_len: int, floor: tuple[Work, Peak]) -> dict[str, Any]:
    """The hardware's floor of each arm, and how near its median came."""
    work, peak = floor
    patches = [_patches(plan)] * rung.images
    least = {
        arm: first_token_s(work, peak, prompt_len, patches, apart=arm in ("streamed", "sequential"))
        for arm in rung.shots
    }
    return {
        "floor_s": {arm: round(seconds, 5) for arm, seconds in least.items()},
        "share_of_floor": {arm: share(seconds, rung.first_s(arm)) for arm, seconds in least.items()},
    }


def _patches(plan: Plan) -> int:
    """Patches of a picture: its sides rounded to whole merge blocks of two by two patches of 16 pixels."""
    _, sides = painter(plan.pictures, plan.size)
    across, down = (2 * round(side / 32) for side in sides)
    return across * down


def report(rungs: Sequence[Rung], plan: Plan, floor: tuple[Work, Peak] | None, console: Console) -> dict[str, Any]:
    """Print the table; return the figures by number of images."""
    found = {rung.images: figures(rung, plan, floor) for rung in rungs}
    table = Table(title="time to first token in seconds, medians", padding=(0, 0), pad_edge=False)
    arms = list(rungs[0].shots)
    extra = [name for name in SHORT if name in found[rungs[0].images]]
    heads = [SHORT.get(arm, arm) for arm in arms] + [SHORT[name] for name in extra]
    for name in ("N", "tokens", *heads, *(["floor", "share"] if floor else []), "alike"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for images, row in found.items():
        best = min(arms, key=lambda arm, row=row: row["first_token_s"][arm]["median"])  # type: ignore[misc]
        cells = [f"{row['first_token_s'][arm]['median']:.3f}" for arm in arms]
        cells += [f"{row[name]:.3f}" if name in row else "" for name in extra]
        if floor:
            cells += [f"{row['floor_s'][best]:.3f}", f"{row['share_of_floor'][best]:.2f}"]
        table.add_row(str(images), str(row["prompt_tokens"]), *cells, "yes" if row["identical"] else "NO")
    console.print(table)
    return {"pictures": plan.pictures, "size": plan.size, "images": {str(images): row for images, row in found.items()}}


def run(subject: Subject, plan: Plan) -> str:
    """Measure and print; returns the JSON line. Progress goes to the standard error."""
    console, floor = Console(stderr=True), floor_of(subject)
    with console.status("") as status:
        rungs = asyncio.run(measure(arms_of(subject, plan.arms), plan, status.update))
    return line({"bench": "ttft", **report(rungs, plan, floor, Console())}, devices_of(subject))
