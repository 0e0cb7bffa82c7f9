"""Questions over several charts: which chart, how many charts, one chart's value against another's.

Owns the same as `facts`, for lists of charts. Promises unique answers; charts are named "Chart 1", "Chart 2" in the
order of their pictures. Refuses to know how a question is worded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from recipe.charts import KIND_NAMES, Chart
from recipe.describe import describe_all
from recipe.facts import Fact

PLURALS = {"bar": "bar charts", "hbar": "horizontal bar charts", "line": "line charts", "pie": "pie charts",
           "table": "tables"}  # fmt: skip
ManyMaker = Callable[[random.Random, Sequence[Chart]], Fact | None]


def _only(flags: list[bool]) -> int | None:
    return flags.index(True) if flags.count(True) == 1 else None


def _best(numbers: Sequence[float], largest: bool = True) -> int | None:
    """The only largest (or smallest) number's place; None when the runner-up is within two per cent."""
    order = sorted(range(len(numbers)), key=lambda at: numbers[at], reverse=largest)
    first, second = numbers[order[0]], numbers[order[1]]
    return order[0] if abs(first - second) > 0.02 * max(abs(first), abs(second)) else None


def _named(kind: str, slots: dict[str, str], at: int | None) -> Fact | None:
    return None if at is None else Fact(kind, slots, f"Chart {at + 1}")


def which_has(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    """The chart with a label, a title, or of a kind."""
    chart = rng.choice(charts)
    roll = rng.random()
    if roll < 0.5:
        label = rng.choice(chart.labels)
        return _named("which_label", {"X": label}, _only([label in other.labels for other in charts]))
    if roll < 0.8:
        only = _only([other.title == chart.title for other in charts])
        return _named("which_title", {"T": chart.title}, only) if chart.title else None
    same = [other.kind == chart.kind for other in charts]
    if chart.kind == "bar" and any(other.kind == "hbar" for other in charts):
        return None
    return _named("which_kind", {"K": KIND_NAMES[chart.kind]}, _only(same))


def which_most(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    """The chart with the highest value, lowest value, largest total, most or fewest categories."""
    counts = [len(chart.labels) for chart in charts]
    roll = rng.random()
    if roll < 0.25:
        top = max(counts)
        return _named("which_most", {}, counts.index(top) if counts.count(top) == 1 else None)
    if roll < 0.4:
        least = min(counts)
        return _named("which_fewest", {}, counts.index(least) if counts.count(least) == 1 else None)
    if not all(chart.readable for chart in charts):
        return None
    if roll < 0.7:
        return _named("which_max", {}, _best([max(map(max, chart.values)) for chart in charts]))
    if roll < 0.82:
        return _named("which_min", {}, _best([min(map(min, chart.values)) for chart in charts], largest=False))
    totals = [sum(map(sum, chart.values)) for chart in charts]
    best = _best(totals)
    if best is None or any(total > 0.8 * totals[best] for at, total in enumerate(totals) if at != best):
        return None
    return _named("which_total", {}, best)


def counting(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    if rng.random() < 0.6:
        return Fact("how_many_charts", {}, str(len(charts)), True)
    kind = rng.choice(charts).kind
    if kind == "bar" and any(chart.kind == "hbar" for chart in charts):
        return None
    return Fact("how_many_kind", {"Ks": PLURALS[kind]}, str(sum(chart.kind == kind for chart in charts)), True)


def titles(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    if not all(chart.title for chart in charts):
        return None
    return Fact("titles", {}, "; ".join(chart.title for chart in charts))


def across(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    """The highest value of all charts, or its label."""
    if not all(chart.readable for chart in charts):
        return None
    at = _best([max(map(max, chart.values)) for chart in charts])
    if at is None:
        return None
    chart = charts[at]
    top = max(map(max, chart.values))
    if rng.random() < 0.6:
        return Fact("across_value", {}, chart.show(top), True)
    row = next(row for row in chart.values if top in row)
    single = sum(row.count(top) for row in chart.values) == 1
    return Fact("across_label", {}, chart.labels[row.index(top)]) if single else None


def crossing(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    """A value of one chart with a value of another: larger, difference, sum."""
    one, other = rng.sample(range(len(charts)), 2)
    if any(not charts[at].readable or len(charts[at].series) > 1 for at in (one, other)):
        return None
    x, y = (rng.randrange(len(charts[at].labels)) for at in (one, other))
    first, second = charts[one].values[0][x], charts[other].values[0][y]
    name = rng.choice(("chart {}", "chart {}", "picture {}", "image {}", "graph {}"))
    texts = [
        f"{charts[at].labels[place]} {rng.choice(('in', 'in', 'of', 'from'))} {name.format(at + 1)}"
        for at, place in ((one, x), (other, y))
    ]
    if first == second:
        return None
    more, less = texts if first > second else texts[::-1]
    slots = {"XI": texts[0], "YJ": texts[1], "AI": more, "BJ": less}
    alike = (charts[one].prefix, charts[one].unit) == (charts[other].prefix, charts[other].unit)
    roll = rng.random()
    if roll < 0.35:
        label = charts[one].labels[x] if first > second else charts[other].labels[y]
        return Fact("cross_larger", slots, label) if charts[one].labels[x] != charts[other].labels[y] else None
    if roll < 0.65 or not alike:
        return Fact("cross_compare", slots, "yes" if first > second else "no")
    shower = max((charts[one], charts[other]), key=lambda chart: chart.decimals)
    number = abs(first - second) if roll < 0.85 else first + second
    return Fact("cross_difference" if roll < 0.85 else "cross_sum", slots, shower.show(round(number, 1)), True)


def shared(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    """The chart in which a label that all have is largest."""
    names = [name for name in charts[0].labels if all(name in chart.labels for chart in charts)]
    if not names or any(not chart.readable or len(chart.series) > 1 for chart in charts):
        return None
    label = rng.choice(names)
    return _named("same_label", {"X": label}, _best([chart.values[0][chart.labels.index(label)] for chart in charts]))


def description(rng: random.Random, charts: Sequence[Chart]) -> Fact | None:
    return Fact("describe_all", {}, describe_all(list(charts)))


# Kind of question, its maker, its share.
MANY: dict[str, tuple[ManyMaker, int]] = {
    "which_has": (which_has, 30),
    "which_most": (which_most, 22),
    "count_charts": (counting, 5),
    "titles": (titles, 4),
    "across": (across, 8),
    "cross": (crossing, 22),
    "shared": (shared, 14),
    "describe_all": (description, 6),
}
