"""Data without a picture: labels, series, values, title, units.

Owns the `Figures` record and its random choice. Promises values of a believable spread, distinct labels, and that
titles and labels fit the width of the picture to come. Refuses to know how anything is drawn; a painter may move values
to readable places and says so by returning new figures.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from recipe.style import Color
from recipe.words import absent_label, axis_words, make_labels, make_series, make_title


@dataclass(frozen=True)
class Figures:
    """Data of one chart; `values[s][i]` belongs to `series[s]` and `labels[i]`."""

    kind: str
    title: str
    labels: tuple[str, ...]
    series: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    decimals: int = 0
    prefix: str = ""
    unit: str = ""
    axis_title: str = ""
    label_title: str = ""
    measure: str = ""  # what the values are, in lower case, as the picture says it
    entity: str = ""  # what the categories are, likewise
    absent: str = ""  # a label that is not there
    printed: bool = True
    ordered: bool = True
    colors: tuple[Color, ...] = ()


TOPS = (10, 20, 50, 100, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
SERIES_ODDS = {"bar": (80, 13, 7), "hbar": (90, 7, 3), "line": (68, 22, 10), "pie": (1, 0, 0), "table": (38, 36, 26)}
COUNTS = {"bar": (2, 12), "hbar": (2, 12), "line": (3, 12), "pie": (2, 8), "table": (2, 9)}


def make_figures(rng: random.Random, split: str, kind: str, width: int) -> Figures:
    """Random data for a chart of the kind, in a picture of the given width."""
    groups = rng.choices((1, 2, 3), SERIES_ODDS[kind])[0]
    count = _count(rng, kind, groups, width)
    decimals, prefix, unit, top = _measure(rng, kind)
    rows = [_row(rng, kind, count, top, decimals) for _ in range(groups)]
    if kind == "pie":
        rows, decimals, prefix, unit = _shares(rng, count, decimals, prefix, unit)
    axis_title, label_title = axis_words(rng, split)
    title, measure, entity = make_title(rng, split, max(18, width // 11))
    title = "" if rng.random() < 0.03 else title
    room = 8 if kind in ("bar", "line") and count * groups > 4 else 16
    labels = make_labels(rng, split, count, room, kind == "line")
    return Figures(
        kind=kind,
        title=title,
        labels=labels,
        series=make_series(rng, split, groups),
        values=tuple(rows),
        decimals=decimals,
        prefix=prefix,
        unit=unit,
        axis_title=axis_title,
        label_title=label_title,
        measure=axis_title.lower() if kind not in ("pie", "table") and axis_title else measure if title else "",
        entity=label_title.lower() or (entity if title else ""),
        absent=absent_label(rng, split, labels),
    )


def _count(rng: random.Random, kind: str, groups: int, width: int) -> int:
    low, high = COUNTS[kind]
    if kind in ("bar", "line"):
        high = min(high, max(3, width // 42))
        if groups > 1:
            high = max(3, high // (groups if kind == "bar" else 1))
    elif kind != "pie" and groups > 1:
        high = 7 if kind == "table" else 5
    return rng.randint(low, max(low, min(high, rng.choice((5, 6, 7, 8, 12)))))


def _measure(rng: random.Random, kind: str) -> tuple[int, str, str, float]:
    """Decimals, prefix, unit and rough top of the values."""
    roll = rng.random()
    if roll < 0.14:
        return (1 if rng.random() < 0.25 else 0), "", "%", 100
    top = rng.choice(TOPS) * rng.uniform(0.6, 1.2)
    decimals = 1 if top < 120 and rng.random() < 0.35 else 0
    prefix = "$" if roll < 0.24 else ""
    return decimals, prefix, "", max(top, 8)


def _row(rng: random.Random, kind: str, count: int, top: float, decimals: int) -> tuple[float, ...]:
    """Distinct values up to `top`: scattered, close together, one standing out, or a walk for lines."""
    grain = 10.0**-decimals
    floor = max(grain, top * rng.choice((0.02, 0.05, 0.1, 0.3, 0.5)))
    walk = kind == "line" and rng.random() < 0.6
    level, values, seen = rng.uniform(floor, top), [], set()
    for _ in range(count):
        for _ in range(20):
            raw = min(max(level + rng.gauss(0, top * 0.13), floor), top) if walk else rng.uniform(floor, top)
            number = round(raw / grain)
            if number not in seen:
                break
        seen.add(number)
        level = raw
        values.append(round(number * grain, decimals))
    if kind != "line" and rng.random() < 0.12:
        values.sort(reverse=rng.random() < 0.6)
    return tuple(values)


def _shares(
    rng: random.Random, count: int, decimals: int, prefix: str, unit: str
) -> tuple[list[tuple[float, ...]], int, str, str]:
    """Pie values: shares that add up to 100 %, or plain amounts."""
    weights = [rng.uniform(1, 6) for _ in range(count)]
    if rng.random() < 0.35 and not unit:
        total = rng.choice((40, 100, 400, 1000, 5000))
        amounts = _apart([max(1, round(total * weight / sum(weights))) for weight in weights])
        return [tuple(float(amount) for amount in amounts)], 0, prefix, ""
    decimals = 1 if rng.random() < 0.42 else 0
    grain = 1000 if decimals else 100
    cuts = [max(grain // 33, round(grain * weight / sum(weights))) for weight in weights]
    cuts[cuts.index(max(cuts))] += grain - sum(cuts)
    return [tuple(round(cut * 100 / grain, decimals) for cut in cuts)], decimals, "", "%"


def _apart(amounts: list[int]) -> list[int]:
    """Raises repeated amounts until all differ."""
    seen: set[int] = set()
    for at, amount in enumerate(amounts):
        while amount in seen:
            amount += 1
        seen.add(amount)
        amounts[at] = amount
    return amounts
