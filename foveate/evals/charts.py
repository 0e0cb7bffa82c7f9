"""Asks a model about the bundled charts and counts right answers.

Owns the sets that ship with the demo, the loop over questions with bounded concurrency, and the report: a table by
kind and by number of pictures, then one JSON line. Promises that the order and text of questions never change between
runs and that a failed request counts as a wrong answer with its reason kept. Refuses to know how a model is run: `ask`
is any coroutine function from a question and picture paths to an answer; `http_ask` makes one for a server.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from foveate.core.errors import ConfigError, RequestFailed
from foveate.evals.score import Outcome, description_is_right, identical, is_right, shares

DEMO = Path(__file__).parent.parent / "demo"
# Name of a set, its file, the folder of its pictures, and (for parts of a file) the value of its "set" field.
SETS: Mapping[str, tuple[str, str, str]] = {
    "charts": ("eval/charts220.jsonl", "eval", ""),
    "wordings": ("eval/wordings60.jsonl", "eval", ""),
    "descriptions": ("eval/describe100.jsonl", "eval", ""),
    "matplotlib": ("eval/matplotlib30.jsonl", "eval", ""),
    "sanity": ("pictures/quick.jsonl", "pictures", "sanity"),
    "images": ("pictures/quick.jsonl", "pictures", "images"),
    "pictures": ("pictures/pictures.jsonl", "pictures", ""),
}
NO_ANSWER = "[no answer: "
Ask = Callable[[str, Sequence[Path]], Awaitable[str]]


@dataclass(frozen=True)
class Question:
    """A question, its pictures, and what counts as right."""

    id: str
    images: tuple[Path, ...]
    question: str
    answer: str
    kind: str
    numeric: bool
    data: Mapping[str, Any] | None = None

    def judge(self, answer: str) -> Outcome:
        """The outcome of an answer."""
        right = (
            is_right(answer, self.answer, self.numeric)
            if self.data is None
            else description_is_right(answer, self.data)
        )
        return Outcome(self.id, len(self.images), self.kind, self.question, self.answer, answer, right)


@dataclass(frozen=True)
class Report:
    """All outcomes of a run; `identical` counts answers equal to those of the run compared with."""

    name: str
    outcomes: tuple[Outcome, ...]
    identical: int | None = None

    @property
    def right(self) -> int:
        return sum(outcome.right for outcome in self.outcomes)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The reasons of the requests that failed."""
        return tuple(outcome.answer for outcome in self.outcomes if outcome.answer.startswith(NO_ANSWER))

    def line(self) -> str:
        """The one JSON line that ends a run."""
        record: dict[str, Any] = {
            "set": self.name,
            "questions": len(self.outcomes),
            "right": self.right,
            "by_images": {str(number): list(pair) for number, pair in shares(self.outcomes, "images").items()},
            "by_kind": {kind: list(pair) for kind, pair in shares(self.outcomes, "kind").items()},
        }
        if self.unanswered:
            record["unanswered"] = len(self.unanswered)
        if self.identical is not None:
            record["identical"] = self.identical
        return json.dumps(record)


def load(name: str, limit: int | None = None) -> list[Question]:
    """The questions of a bundled set, in order; raises KeyError for a name that is not in `SETS`."""
    file, folder, part = SETS[name]
    questions = []
    for at, line in enumerate((DEMO / file).read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        if part and row["set"] != part:
            continue
        images = tuple(DEMO / folder / image for image in row.get("images") or [row["file"]])
        questions.append(
            Question(
                row.get("id", f"{name}-{at:02d}"),
                images,
                row["question"],
                row["answer"],
                row["kind"],
                row["numeric"],
                row.get("data"),
            )
        )
    return questions[:limit]


@dataclass(frozen=True)
class Plan:
    """Which set to ask, how many at a time and in all; answers go to `out` and are compared with those of `against`."""

    name: str
    concurrency: int = 4
    limit: int | None = None
    out: Path | None = None
    against: Path | None = None


async def run(plan: Plan, ask: Ask) -> Report:
    """Asks every question of a set. Raises ConfigError, before the first, for files and numbers that cannot be."""
    name, out, known = plan.name, plan.out, _checked(plan)
    questions = load(name, plan.limit)
    gate = asyncio.Semaphore(plan.concurrency)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(name, total=len(questions))

        async def one(question: Question) -> Outcome:
            async with gate:
                outcome = question.judge(await _answer(ask, question))
            progress.advance(bar)
            return outcome

        outcomes = tuple(await asyncio.gather(*map(one, questions)))
    if out is not None:
        out.write_text(
            "".join(json.dumps(asdict(outcome), ensure_ascii=False) + "\n" for outcome in outcomes), encoding="utf-8"
        )
    return Report(name, outcomes, identical(outcomes, known) if known is not None else None)


def _checked(plan: Plan) -> dict[str, str] | None:
    """The answers to compare with. What is wrong with a plan is told before hours of asking, not after."""
    if plan.concurrency < 1 or (plan.limit is not None and plan.limit < 1):
        raise ConfigError("concurrency and limit of an evaluation are at least 1")
    try:
        if plan.out is not None:
            plan.out.open("a").close()
        return None if plan.against is None else answers(plan.against)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{plan.against} holds no answers of an earlier run") from error


async def _answer(ask: Ask, question: Question) -> str:
    try:
        return await ask(question.question, question.images)
    except (httpx.HTTPError, OSError, ValueError) as failure:
        return f"{NO_ANSWER}{type(failure).__name__}: {failure}]"


def answers(path: Path) -> dict[str, str]:
    """Answers by question id from a file that a run wrote."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["id"]: row["answer"] for row in rows}


def print_report(report: Report, console: Console | None = None) -> None:
    """The table by number of pictures and by kind; the JSON line goes to standard output after it.

    Raises RequestFailed when nothing was answered: a server that is not there has no score.
    """
    if report.outcomes and len(report.unanswered) == len(report.outcomes):
        raise RequestFailed(f"no question was answered; the first: {report.unanswered[0]}")
    console = console or Console(stderr=True)
    table = Table(title=f"{report.name}: {report.right} of {len(report.outcomes)} right")
    for column, justify in (("", "left"), ("right", "right"), ("asked", "right"), ("share", "right")):
        table.add_column(column, justify=justify)
    for key, label in (("images", "{} picture(s)"), ("kind", "{}")):
        for name, (right, asked) in shares(report.outcomes, key).items():
            table.add_row(label.format(name), str(right), str(asked), f"{right / asked:.2f}")
        table.add_section()
    console.print(table)
    print(report.line())


def http_ask(url: str, model: str, *, key: str = "", max_tokens: int = 320, timeout_s: float = 300.0) -> Ask:
    """An `ask` over an OpenAI-compatible server: pictures as base64 data URLs before the question, temperature 0."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    root = url.rstrip("/").removesuffix("/v1")
    client = httpx.AsyncClient(timeout=timeout_s, headers=headers)

    async def ask(question: str, images: Sequence[Path]) -> str:
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": data_url(image)}} for image in images
        ]
        content.append({"type": "text", "text": question})
        body = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        reply = await client.post(f"{root}/v1/chat/completions", json=body)
        reply.raise_for_status()
        return reply.json()["choices"][0]["message"]["content"] or ""

    return ask


def data_url(image: Path) -> str:
    """A picture file as a data URL."""
    kind = {".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}.get(image.suffix.lower(), "png")
    return f"data:image/{kind};base64,{base64.b64encode(image.read_bytes()).decode()}"
