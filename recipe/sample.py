"""Whole conversations, in the mix a model is trained on.

Owns how many pictures and turns a conversation has and where the pictures stand in the first message. Promises that the
first turn's `parts` spell out its question and its pictures in order. Refuses to know tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from recipe.charts import Chart, make_chart
from recipe.questions import QA, ask, greeting, no_picture, off_topic
from recipe.wordings import expand

Part = tuple[str, int | str]
IMAGE_ODDS = ((1, 56), (2, 15), (3, 12), (4, 13), (5, 2), (6, 2))


@dataclass(frozen=True)
class Conversation:
    """Charts, turns, and the first user message in parts: ("image", index) and ("text", text)."""

    charts: tuple[Chart, ...]
    turns: tuple[QA, ...]
    parts: tuple[Part, ...]


def conversation(rng: random.Random, split: str = "train", turns: int = 0, images: int = 0) -> Conversation:
    """A random conversation; `turns` and `images` fix their numbers (0: random)."""
    if not images and rng.random() < 0.04:
        return _without_pictures(rng, split)
    number = images or rng.choices([n for n, _ in IMAGE_ODDS], [odds for _, odds in IMAGE_ODDS])[0]
    charts = charts_together(rng, number, split)
    wanted = turns or rng.randint(6, 20)
    asked = ask(rng, charts, split, wanted) or ask(rng, charts, split, 1, "chart_kind")
    if rng.random() < 0.25:
        for _ in range(rng.choice((1, 1, 2))):
            other = off_topic(rng, split, picture=True) if rng.random() < 0.85 else greeting(rng, split)
            asked[rng.randrange(len(asked))] = QA(other.question, other.answer, other.kind, number)
    return Conversation(charts, tuple(asked), _parts(rng, number, asked[0].question))


def charts_together(rng: random.Random, number: int, split: str) -> tuple[Chart, ...]:
    """Charts of one conversation; now and then they share labels, so that they can be compared."""
    first = make_chart(rng, split)
    sharing = number > 1 and rng.random() < 0.35
    charts = [first]
    for _ in range(number - 1):
        kind = first.kind if rng.random() < 0.2 else ""
        charts.append(make_chart(rng, split, kind, first.labels if sharing else ()))
    return tuple(charts)


def _without_pictures(rng: random.Random, split: str) -> Conversation:
    turns = []
    for _ in range(rng.randint(4, 12)):
        roll = rng.random()
        if roll < 0.5:
            turns.append(off_topic(rng, split))
        elif roll < 0.65:
            turns.append(greeting(rng, split))
        else:
            turns.append(no_picture(rng, (make_chart(rng, split),) * rng.choice((1, 1, 1, 2)), split))
    return Conversation((), tuple(turns), (("text", turns[0].question),))


def _parts(rng: random.Random, number: int, question: str) -> tuple[Part, ...]:
    """Mostly pictures first; sometimes the question first, or a name before each picture."""
    roll = rng.random()
    pictures: list[Part] = [("image", at) for at in range(number)]
    if roll < 0.8:
        return (*pictures, ("text", question))
    if roll < 0.9:
        return (("text", question), *pictures)
    if number > 1 and roll < 0.97:
        noun = rng.choice(("Chart", "Image", "Picture", "Figure", "chart"))
        named = [part for at, picture in enumerate(pictures) for part in (("text", f"{noun} {at + 1}:"), picture)]
        return (*named, ("text", question))
    lead = rng.choice(("Here you go:", "Look at this:", "See the picture.", "Attached.", expand(rng, "hello")[1]))
    return (("text", lead), *pictures, ("text", question))
