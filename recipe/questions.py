"""Questions in words with exact answers: about one chart, several, none, or something else altogether.

Owns the mix of question kinds and how a question refers to one of several charts. Promises canonical answers: the bare
number with the chart's own prefix or unit, a label, a title, yes or no, "A, B, C", "Chart 2", or one of the three fixed
sentences below. Refuses to know pictures beyond their data.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from recipe.charts import KIND_NAMES, Chart
from recipe.facts import ORDINALS, SHORT_ORDINALS, SINGLE, Fact
from recipe.facts_many import MANY
from recipe.wordings import Setting, expand, fill, phrase
from recipe.words import invent

OFF_TOPIC = "I only read charts."
NO_CHART = "I see no chart. Please attach one."
GREETING = "Hello! Send me a chart and ask about it."

NOUNS = ("chart", "chart", "chart", "chart", "graph", "figure", "plot", "diagram", "picture", "image")
CATEGORIES = {
    "bar": ("bar", "bar", "category", "column", "item", "label", "entry", "group"),
    "hbar": ("bar", "bar", "category", "item", "label", "entry", "group"),
    "line": ("point", "category", "label", "data point", "x value", "item", "position"),
    "pie": ("slice", "slice", "category", "segment", "wedge", "sector", "item", "part", "piece", "label"),
    "table": ("row", "row", "entry", "item", "category", "label"),
}
SHARES = ("percentage", "percentage", "share", "percent value", "proportion", "rate")  # of charts in per cent
PRICES = ("price", "cost", "amount in dollars", "dollar amount", "dollar value")  # of charts in dollars
UNIT_SECTIONS = ("value", "value_series", "max_value", "min_value")
MANY_NOUNS = ("chart", "chart", "chart", "graph", "figure", "picture", "image", "plot", "one")


@dataclass(frozen=True)
class QA:
    """A question, its only right answer, its kind, the number of pictures it comes with, and whether it is a number."""

    question: str
    answer: str
    kind: str
    images: int
    numeric: bool = False
    section: str = ""


def ask(rng: random.Random, charts: Sequence[Chart], split: str = "train", count: int = 1, kind: str = "") -> list[QA]:
    """Up to `count` different questions about the charts, of one kind or of many; fewer if there are not as many."""
    found: dict[tuple[str, str], QA] = {}
    for _ in range(count * 12):
        if len(found) == count:
            break
        question = _one(rng, charts, kind)
        if question and not any(question.question == other.question for other in found.values()):
            found.setdefault((question.section, question.answer + question.question), question)
    return list(found.values())


def _one(rng: random.Random, charts: Sequence[Chart], kind: str) -> QA | None:
    many = kind in MANY if kind else len(charts) > 1 and rng.random() < 0.42
    table = MANY if many else SINGLE
    kind = kind or rng.choices(list(table), [share for _, share in table.values()])[0]
    if many:
        fact = MANY[kind][0](rng, charts)
        return None if fact is None else _worded(rng, fact, kind, charts, None)
    at = rng.randrange(len(charts))
    fact = SINGLE[kind][0](rng, charts[at])
    return None if fact is None else _worded(rng, fact, kind, charts, at)


def _worded(rng: random.Random, fact: Fact, kind: str, charts: Sequence[Chart], at: int | None) -> QA:
    if at is None:
        noun = rng.choice(MANY_NOUNS[:-1])
        slots = {"chart": noun, "charts": f"{noun}s", **fact.slots}
        text = phrase(rng, fact.kind, slots, Setting(noun, bare=True))
        return QA(text, fact.answer, kind, len(charts), fact.numeric, fact.kind)
    chart = charts[at]
    cat = rng.choice(CATEGORIES[chart.kind])
    if chart.entity and rng.random() < 0.3:
        cat = chart.entity
    noun = rng.choice(NOUNS) if rng.random() < 0.8 else KIND_NAMES[chart.kind].removeprefix("horizontal ")
    reference = "" if len(charts) == 1 or _obvious(rng, fact, charts, at) else refer(rng, charts, at)
    slots = {"cat": cat, "cats": plural(cat), "M": chart.measure, **fact.slots}
    if (chart.unit or chart.prefix) and fact.kind in UNIT_SECTIONS and rng.random() < 0.25:
        slots["val"] = rng.choice(SHARES if chart.unit else PRICES)
    return QA(phrase(rng, fact.kind, slots, Setting(noun, reference)), fact.answer, kind, len(charts), fact.numeric,
              fact.kind)  # fmt: skip


def plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("" if noun.endswith("s") else "s")


def _obvious(rng: random.Random, fact: Fact, charts: Sequence[Chart], at: int) -> bool:
    """Sometimes a label that only one chart has says enough."""
    label = fact.slots.get("X")
    others = [chart for place, chart in enumerate(charts) if place != at]
    if label is None or fact.kind == "contains" or any(label in (*c.labels, *c.series) for c in others):
        return False
    return rng.random() < 0.2


def refer(rng: random.Random, charts: Sequence[Chart], at: int) -> str:
    """A way to say which chart is meant."""
    noun = rng.choice(NOUNS)
    chart = charts[at]
    ordinal = rng.choice((ORDINALS, ORDINALS, SHORT_ORDINALS))[at]
    forms = [f"{noun} {at + 1}"] * 4 + [f"the {ordinal} {noun}"] * 4
    forms += [f"{noun} number {at + 1}", f"{noun} no. {at + 1}", f"{noun} #{at + 1}", f"the {ordinal} one"]
    if at == len(charts) - 1:
        forms += [f"the last {noun}"] * 2 + ["the last one"]
    if chart.title and sum(other.title == chart.title for other in charts) == 1:
        title = chart.title if rng.random() < 0.6 else f'"{chart.title}"'
        forms += [f"the {noun} {rng.choice(('titled', 'called', 'about', 'named', 'with the title'))} {title}"] * 2
    if sum(other.kind == chart.kind for other in charts) == 1 and chart.kind != "bar":
        forms += [f"the {KIND_NAMES[chart.kind].removesuffix(' chart') + rng.choice((' chart', ' graph'))}"
                  if chart.kind != "table" else "the table"] * 2  # fmt: skip
    return rng.choice(forms)


def _fixed(rng: random.Random, section: str, answer: str, kind: str, split: str) -> QA:
    slots = {"invented": invent(rng, split).lower()}
    text = fill(rng, expand(rng, section)[1], slots)
    if rng.random() < 0.1:
        text = f"{expand(rng, 'hello')[1]}, {text}"
    if rng.random() < 0.12:
        text += f"{rng.choice((', ', ' '))}{expand(rng, 'close')[1]}"
    if rng.random() < 0.6:
        text = text[:1].upper() + text[1:]
    return QA(text + rng.choice(("", "?", ".", "!", "", "?")), answer, kind, 0, False, section)


def greeting(rng: random.Random, split: str = "train") -> QA:
    """A greeting, answered with one sentence that says what the model does."""
    return _fixed(rng, "greeting", GREETING, "greeting", split)


def off_topic(rng: random.Random, split: str = "train", picture: bool = False) -> QA:
    """Something that is not a chart question; with `picture`, also unrelated requests about the picture."""
    section = "off_picture" if picture and rng.random() < 0.15 else "off_topic"
    return _fixed(rng, section, OFF_TOPIC, "off_topic", split)


def no_picture(rng: random.Random, charts: Sequence[Chart], split: str = "train") -> QA:
    """A question about charts that were not sent."""
    while True:
        found = ask(rng, charts, split)
        if found and found[0].kind not in ("count_charts",):
            break
    one = found[0]
    return QA(one.question, NO_CHART, "no_picture", 0, False, one.section)
