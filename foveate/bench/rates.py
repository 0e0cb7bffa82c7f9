"""Tokens a second while so many requests run at once: text alone, or one new chart each, answers of a fixed length.

Owns two rates: `total`, output tokens over the whole time of a group (what a client gets, pictures and prefill
included), and `decode`, the tokens after each first one over the time from the first of these to the end. Beside them
stands the floor of the hardware: what one step must read. Prints a table, then one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from foveate.bench.arms import Open, Subject, arms_of, devices_of, floor_of
from foveate.bench.asking import Question, Shot, Target, together
from foveate.bench.charts import painter
from foveate.bench.record import line, share, summed
from foveate.core.work import Peak, Work, step_s

WORKLOADS = ("text", "charts", "screenshots")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: requests at once, tokens of each answer, measured rounds after one warm-up, what they show."""

    batches: tuple[int, ...] = (1, 2, 4, 8)
    tokens: int = 256
    repeats: int = 3
    workload: str = "text"


@dataclass(frozen=True, slots=True)
class Group:
    """Answers to requests that were sent at once."""

    shots: tuple[Shot, ...]

    @property
    def tokens(self) -> int:
        return sum(shot.tokens for shot in self.shots)

    @property
    def total(self) -> float:
        """Tokens a second from sending to the last answer's end."""
        return self.tokens / (max(shot.ended_s for shot in self.shots) - min(shot.began_s for shot in self.shots))

    @property
    def decode(self) -> float:
        """Tokens a second behind the first ones."""
        span_s = max(shot.ended_s for shot in self.shots) - min(shot.stamps[0] for shot in self.shots)
        return (self.tokens - len(self.shots)) / span_s if span_s > 0 else 0.0


def asked(plan: Plan, count: int, seeds: Iterator[int]) -> list[Question]:
    """So many requests, no two alike."""
    if plan.workload == "text":
        return [Question(f"Tell a long story about number {next(seeds)}.", (), plan.tokens) for _ in range(count)]
    draw, _ = painter(plan.workload)
    return [Question("Describe the picture.", (draw(next(seeds)),), plan.tokens) for _ in range(count)]


async def measure(open_target: Open, plan: Plan, say: Callable[[str], None]) -> dict[int, list[Group]]:
    """Groups by number of requests at once."""
    say("opening")
    target: Target = await open_target()
    found: dict[int, list[Group]] = {}
    seeds = itertools.count(50_000)
    try:
        for count in plan.batches:
            found[count] = []
            for number in range(plan.repeats + 1):
                say(f"{count} at once, round {number} of {plan.repeats}")
                group = Group(tuple(await together(target, asked(plan, count, seeds))))
                if number:  # the first round warms up
                    found[count].append(group)
        return found
    finally:
        await target.aclose()


def figures(count: int, groups: Sequence[Group], floor: tuple[Work, Peak] | None) -> dict[str, Any]:
    """The numbers of one batch size; the floor takes the context as it is half-way."""
    shots = groups[0].shots
    out: dict[str, Any] = {
        "prompt_tokens": shots[0].prompt_tokens,
        "tokens": groups[0].tokens,
        "total_tok_s": summed([group.total for group in groups]),
        "decode_tok_s": summed([group.decode for group in groups]),
    }
    if floor is not None:
        context_len = shots[0].prompt_tokens + shots[0].tokens / 2
        least_s = step_s(*floor, count, context_len)
        reached = out["decode_tok_s"]["median"]
        out |= {"floor_tok_s": round(count / least_s, 2), "share_of_floor": share(reached, count / least_s)}
    return out


def report(
    found: dict[int, list[Group]], plan: Plan, floor: tuple[Work, Peak] | None, console: Console
) -> dict[str, Any]:
    """Print the table; return the figures by batch size."""
    rows = {count: figures(count, groups, floor) for count, groups in found.items()}
    table = Table(title=f"{plan.workload}, {plan.tokens} tokens each: tokens a second, medians", padding=(0, 1))
    for name in ("at once", "prompt", "total", "decode", *(["floor", "share"] if floor else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for count, row in rows.items():
        cells = [f"{row[f'{name}_tok_s']['median']:.1f}" for name in ("total", "decode")]
        if floor:
            cells += [f"{row['floor_tok_s']:.1f}", f"{row['share_of_floor']:.2f}"]
        table.add_row(str(count), str(row["prompt_tokens"]), *cells)
    console.print(table)
    return {"workload": plan.workload, "batches": {str(count): row for count, row in rows.items()}}


def run(subject: Subject, plan: Plan) -> str:
    """Measure and print; returns the JSON line. Progress goes to the standard error."""
    console, floor = Console(stderr=True), floor_of(subject)
    arms = arms_of(subject)
    chosen = arms.get("server") or arms["same_device"]  # while decoding nothing is encoded, so placement is nothing
    with console.status("") as status:
        found = asyncio.run(measure(chosen, plan, status.update))
    return line({"bench": "decode", **report(found, plan, floor, Console())}, devices_of(subject))
