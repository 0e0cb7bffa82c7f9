"""Questions about one chart: what is asked and what the answer is, without wording.

Owns one function per question kind, from a chart to the slots of a wording and the exact answer. Promises that the
answer is unique (no ties) and follows from what is drawn; a function returns None where the question makes no sense.
Refuses to know how a question is worded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from recipe.charts import KIND_NAMES, Chart
from recipe.describe import as_json, bare, describe, extreme

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
SHORT_ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th", "9th", "10th")
NUMBERS = {2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True)
class Fact:
    """A question without words: its wording section, what fills the slots, and the answer."""

    kind: str
    slots: dict[str, str]
    answer: str
    numeric: bool = False


Maker = Callable[[random.Random, Chart], Fact | None]


def two(rng: random.Random, chart: Chart) -> tuple[str, float, str, float] | None:
    """Two categories of the first series with clearly different values."""
    if len(chart.labels) < 2 or len(chart.series) > 1:
        return None
    row = chart.values[0]
    one, other = rng.sample(range(len(row)), 2)
    gap = 0 if chart.readable else 0.05 * sum(row)
    if abs(row[one] - row[other]) <= gap:
        return None
    return chart.labels[one], row[one], chart.labels[other], row[other]


def value(rng: random.Random, chart: Chart) -> Fact | None:
    if not chart.readable:
        return None
    at, row = rng.randrange(len(chart.labels)), rng.randrange(len(chart.series))
    answer = chart.show(chart.values[row][at])
    if len(chart.series) == 1:
        if chart.kind == "table" and chart.series[0] not in ("value", "Value") and rng.random() < 0.35:
            return Fact("value_series", {"X": chart.labels[at], "S": chart.series[0]}, answer, True)
        return Fact(_by_measure(rng, chart, "value"), {"X": chart.labels[at]}, answer, True)
    return Fact("value_series", {"X": chart.labels[at], "S": chart.series[row]}, answer, True)


def _by_measure(rng: random.Random, chart: Chart, section: str) -> str:
    """Now and then the section whose wordings say what is measured."""
    return f"{section}_measure" if chart.measure and rng.random() < 0.25 else section


def extremes(rng: random.Random, chart: Chart) -> Fact | None:
    """Highest, lowest, second; their labels or values; by series where there are several."""
    if len(chart.series) > 1:
        return _series_extremes(rng, chart)
    row, largest = chart.values[0], rng.random() < 0.6
    at = extreme(row, largest)
    rest = sorted(row, reverse=largest)
    if at is None or (not chart.readable and abs(rest[0] - rest[1]) < 0.04 * sum(row)):
        return None
    side = "max" if largest else "min"
    roll = rng.random()
    if roll < 0.5 or not chart.readable:
        return Fact(_by_measure(rng, chart, f"{side}_label"), {}, chart.labels[at])
    if roll < 0.8:
        return Fact(f"{side}_value", {}, chart.show(row[at]), True)
    if roll < 0.88:
        return Fact(f"{side}_both", {}, f"{chart.labels[at]}, {chart.show(row[at])}")
    second = sorted(row, reverse=True)[1]
    if len(row) < 3 or row.count(second) > 1 or extreme(row, True) is None:
        return None
    return Fact("second_label", {}, chart.labels[row.index(second)])


def _series_extremes(rng: random.Random, chart: Chart) -> Fact | None:
    number = rng.randrange(len(chart.series))
    row, name = chart.values[number], chart.series[number]
    roll, largest = rng.random(), rng.random() < 0.6
    at = extreme(row, largest)
    if at is None:
        return None
    if roll < 0.5:
        return Fact("max_series_label" if largest else "min_series_label", {"S": name}, chart.labels[at])
    if roll < 0.7:
        top = extreme(row, True)
        return None if top is None else Fact("max_series_value", {"S": name}, chart.show(row[top]), True)
    place = rng.randrange(len(chart.labels))
    column = tuple(numbers[place] for numbers in chart.values)
    best = extreme(column, True)
    return None if best is None else Fact("best_series", {"X": chart.labels[place]}, chart.series[best])


def count(rng: random.Random, chart: Chart) -> Fact | None:
    if len(chart.series) > 1 and rng.random() < 0.4:
        return Fact("count_series", {}, str(len(chart.series)), True)
    return Fact("count", {}, str(len(chart.labels)), True)


def count_beyond(rng: random.Random, chart: Chart) -> Fact | None:
    """How many values lie above or below a threshold that no value touches."""
    if len(chart.series) > 1 or not chart.readable:
        return None
    row = sorted(chart.values[0])
    middle = (lambda a, b: (a + b) / 2)(*sorted(rng.sample(row, 2))) if len(row) > 1 else row[0]
    step = 10 ** max(0, len(str(int(row[-1]))) - 2)
    limit = max(step, round(middle / step) * step)
    if limit in row:
        return None
    text = f"{chart.prefix}{limit}{chart.unit}" if rng.random() < 0.7 else str(limit)
    above = rng.random() < 0.6
    number = sum(amount > limit for amount in row)
    return Fact(
        "count_above" if above else "count_below", {"V": text}, str(number if above else len(row) - number), True
    )


def difference(rng: random.Random, chart: Chart) -> Fact | None:
    if not chart.readable or len(chart.series) > 1:
        return None
    row = chart.values[0]
    if rng.random() < 0.2:
        return Fact("range", {}, chart.show(round(max(row) - min(row), 1)), True) if len(row) > 1 else None
    pair = two(rng, chart)
    if pair is None:
        return None
    x, first, y, second = pair
    more, less = (x, y) if first > second else (y, x)
    slots = {"X": x, "Y": y, "A": more, "B": less}
    return Fact(_by_measure(rng, chart, "difference"), slots, chart.show(round(abs(first - second), 1)), True)


def addition(rng: random.Random, chart: Chart) -> Fact | None:
    """Sum of two, total of up to six, now and then a mean."""
    if not chart.readable or len(chart.series) > 1:
        return None
    row = chart.values[0]
    if rng.random() < 0.35:
        if len(row) > 6 or (chart.kind == "pie" and chart.unit):
            return None
        if rng.random() < 0.25 and len(row) <= 4:
            mean = f"{sum(row) / len(row):.1f}".removesuffix(".0")
            return Fact("mean", {}, f"{chart.prefix}{mean}{chart.unit}", True)
        return Fact(_by_measure(rng, chart, "total"), {}, chart.show(round(sum(row), 1)), True)
    pair = two(rng, chart)
    if pair is None:
        return None
    return Fact("sum", {"X": pair[0], "Y": pair[2]}, chart.show(round(pair[1] + pair[3], 1)), True)


def ordering(rng: random.Random, chart: Chart) -> Fact | None:
    """Sorted names, all of up to seven or the first few."""
    if not chart.readable or len(chart.series) > 1:
        return None
    row = chart.values[0]
    if len(set(row)) < len(row) or len(row) < 2:
        return None
    down = rng.random() < 0.65
    order = sorted(range(len(row)), key=lambda at: row[at], reverse=down)
    names = [chart.labels[at] for at in order]
    if len(row) > 7 or (len(row) > 3 and rng.random() < 0.3):
        top = rng.choice((2, 2, 3, 3)) if len(row) > 3 else 2
        number = NUMBERS[top] if rng.random() < 0.5 else str(top)
        return Fact("top_list" if down else "bottom_list", {"K": number}, ", ".join(names[:top]))
    return Fact("sort_down" if down else "sort_up", {}, ", ".join(names))


def title(rng: random.Random, chart: Chart) -> Fact | None:
    return Fact("title", {}, chart.title) if chart.title else None


def kind(rng: random.Random, chart: Chart) -> Fact | None:
    return Fact("kind", {}, KIND_NAMES[chart.kind])


def color(rng: random.Random, chart: Chart) -> Fact | None:
    """Colours of names, names of colours, values of colours."""
    if chart.colored == "none":
        return None
    if chart.colored == "all":
        return Fact("color_all", {}, chart.colors[0])
    names = chart.series if chart.colored == "series" else chart.labels
    at = rng.randrange(len(names))
    roll = rng.random()
    if roll < 0.5:
        return Fact("color_of", {"X": names[at]}, chart.colors[at])
    if roll < 0.85 or chart.colored == "series" or not chart.readable:
        return Fact("label_of_color", {"C": chart.colors[at]}, names[at])
    return Fact("value_of_color", {"C": chart.colors[at]}, chart.show(chart.values[0][at]), True)


def comparison(rng: random.Random, chart: Chart) -> Fact | None:
    """Yes or no: one against another, against a number, up or down between neighbours."""
    pair = two(rng, chart)
    if pair is None:
        return None
    x, first, y, second = pair
    roll = rng.random()
    if roll < 0.5 or not chart.readable:
        return Fact(_by_measure(rng, chart, "compare"), {"X": x, "Y": y}, "yes" if first > second else "no")
    if roll < 0.7:
        return Fact("compare_less", {"X": x, "Y": y}, "yes" if first < second else "no")
    if chart.kind == "line" and roll < 0.88:
        at = rng.randrange(len(chart.labels) - 1)
        change = chart.values[0][at + 1] - chart.values[0][at]
        if change == 0:
            return None
        up = rng.random() < 0.6
        slots = {"X": chart.labels[at], "Y": chart.labels[at + 1]}
        return Fact("rises" if up else "falls", slots, "yes" if (change > 0) == up else "no")
    step = 10 ** max(0, len(str(int(max(first, second)))) - 1)
    limit = max(step, round((first + second) / 2 / step) * step)
    if limit == first:
        return None
    return Fact("exceeds", {"X": x, "V": f"{chart.prefix}{limit}{chart.unit}"}, "yes" if first > limit else "no")


def choice(rng: random.Random, chart: Chart) -> Fact | None:
    """Which of two is larger or smaller."""
    pair = two(rng, chart)
    if pair is None:
        return None
    x, first, y, second = pair
    larger = rng.random() < 0.7
    answer = x if (first > second) == larger else y
    return Fact("larger_of" if larger else "smaller_of", {"X": x, "Y": y}, answer)


def place(rng: random.Random, chart: Chart) -> Fact | None:
    """Categories by position, and neighbours."""
    if not chart.ordered:
        return None
    number = len(chart.labels)
    at = rng.randrange(number)
    if rng.random() < 0.3 and number > 2:
        after = rng.random() < 0.6
        other = at + 1 if after else at - 1
        if not 0 <= other < number:
            return None
        near = {"next": "below", "prev": "above"} if chart.kind in ("hbar", "table", "pie") else {
            "next": "to the right of", "prev": "to the left of"
        }  # fmt: skip
        return Fact("after" if after else "before", {"X": chart.labels[at], **near}, chart.labels[other])
    down = chart.kind in ("hbar", "table", "pie")
    slots = {"side": "top" if down else "left"}
    if rng.random() < 0.25:
        at = number - 1
        slots |= {"N": "last", "n": str(number)}
    elif rng.random() < 0.2:
        slots |= {"side": "bottom" if down else "right", "n": str(number - at)}
        slots["N"] = ORDINALS[number - at - 1] if number - at <= 10 else f"{number - at}th"
        return _from_the_end(slots, chart, at)
    else:
        slots |= {"N": rng.choice((ORDINALS, SHORT_ORDINALS))[at] if at < 10 else f"{at + 1}th", "n": str(at + 1)}
    return Fact("nth_last" if slots["N"] == "last" else "nth", slots, chart.labels[at])


def _from_the_end(slots: dict[str, str], chart: Chart, at: int) -> Fact:
    """Counted from the right or bottom; the section for it always says so."""
    return Fact("nth_from", slots, chart.labels[at])


def listing(rng: random.Random, chart: Chart) -> Fact | None:
    """All labels, values or series names."""
    if not chart.ordered or len(chart.labels) > 9:
        return None
    if len(chart.series) > 1 and rng.random() < 0.5:
        return Fact("series_names", {}, ", ".join(chart.series))
    if len(chart.series) == 1 and rng.random() < 0.35:
        return Fact("values", {}, ", ".join(map(chart.show, chart.values[0])))
    return Fact("labels", {}, ", ".join(chart.labels))


def search(rng: random.Random, chart: Chart) -> Fact | None:
    """Which category has a value, and whether a category is there."""
    at = rng.randrange(len(chart.labels))
    if rng.random() < 0.3:
        if chart.absent and rng.random() < 0.5:
            return Fact("contains", {"X": chart.absent}, "no")
        return Fact("contains", {"X": chart.labels[at]}, "yes")
    row = chart.values[0]
    if not chart.readable or len(chart.series) > 1 or row.count(row[at]) > 1:
        return None
    text = chart.show(row[at]) if rng.random() < 0.75 else bare(chart, row[at])
    return Fact("label_of_value", {"V": text}, chart.labels[at])


def data(rng: random.Random, chart: Chart) -> Fact | None:
    if not chart.readable or len(chart.labels) * len(chart.series) > 14:
        return None
    return Fact("json", {}, as_json(chart))


def description(rng: random.Random, chart: Chart) -> Fact | None:
    return Fact("describe", {}, describe(chart))


# Kind of question, its maker, its share.
SINGLE: dict[str, tuple[Maker, int]] = {
    "value": (value, 22),
    "extremes": (extremes, 15),
    "count": (count, 6),
    "count_beyond": (count_beyond, 4),
    "difference": (difference, 7),
    "sum": (addition, 8),
    "order": (ordering, 7),
    "title": (title, 8),
    "chart_kind": (kind, 3),
    "color": (color, 7),
    "compare": (comparison, 7),
    "choice": (choice, 5),
    "position": (place, 5),
    "list": (listing, 4),
    "search": (search, 5),
    "json": (data, 3),
    "describe": (description, 5),
}
