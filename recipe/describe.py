"""Charts in words and in JSON, in one fixed form.

Owns the sentences of descriptions. Promises that every number in them is in the chart's data or counts its categories
or series, and that one description takes about 40 to 120 tokens. Refuses randomness: equal charts read alike.
"""

from __future__ import annotations

from recipe.charts import KIND_NAMES, Chart

LISTED = 6  # categories named one by one up to here


def extreme(row: tuple[float, ...], largest: bool) -> int | None:
    """The position of the only largest (or smallest) value, None when it is shared."""
    best = max(row) if largest else min(row)
    return row.index(best) if row.count(best) == 1 else None


def describe(chart: Chart) -> str:
    """What a chart shows: kind, title, categories, values, extremes."""
    head = f"This {KIND_NAMES[chart.kind]} " + (f'is titled "{chart.title}". ' if chart.title else "has no title. ")
    if len(chart.series) > 1:
        return head + _several(chart)
    count, row = len(chart.labels), chart.values[0]
    if not chart.readable:
        return f"{head}It shows {count} slices without values: {', '.join(chart.labels)}."
    pairs = [f"{label} {chart.show(value)}" for label, value in zip(chart.labels, row, strict=True)]
    if count <= LISTED:
        text = f"{head}It shows {count} categories: {', '.join(pairs)}."
    else:
        text = f"{head}It shows {count} categories, from {pairs[0]} to {pairs[-1]}."
    return text + _ends(chart, row)


def _ends(chart: Chart, row: tuple[float, ...]) -> str:
    text = ""
    for name, at in (("highest", extreme(row, True)), ("lowest", extreme(row, False))):
        if at is not None:
            text += f" The {name} is {chart.labels[at]} with {chart.show(row[at])}."
    return text


def _several(chart: Chart) -> str:
    text = f"It shows {len(chart.labels)} categories and {len(chart.series)} series: {', '.join(chart.series)}."
    for name, row in zip(chart.series, chart.values, strict=True):
        high, low = extreme(row, True), extreme(row, False)
        parts = []
        if high is not None:
            parts.append(f"highest at {chart.labels[high]} with {chart.show(row[high])}")
        if low is not None and low != high:
            parts.append(f"lowest at {chart.labels[low]} with {chart.show(row[low])}")
        if parts:
            text += f" {name} is {' and '.join(parts)}."
    return text


def describe_all(charts: list[Chart]) -> str:
    """One short line for each chart."""
    return "\n".join(f"Chart {number}: {_short(chart)}" for number, chart in enumerate(charts, 1))


def _short(chart: Chart) -> str:
    title = f' "{chart.title}"' if chart.title else " without a title"
    text = f"{KIND_NAMES[chart.kind]}{title}, {len(chart.labels)} categories"
    if len(chart.series) > 1:
        return f"{text}, series {', '.join(chart.series)}."
    if not chart.readable:
        return f"{text}."
    row = chart.values[0]
    for name, at in (("highest", extreme(row, True)), ("lowest", extreme(row, False))):
        if at is not None:
            text += f", {name} {chart.labels[at]} {chart.show(row[at])}"
    return f"{text}."


def as_json(chart: Chart) -> str:
    """The data as one line of JSON: label to number, or series to label to number."""
    if len(chart.series) == 1:
        return _object(chart, chart.values[0])
    rows = (f'"{name}": {_object(chart, row)}' for name, row in zip(chart.series, chart.values, strict=True))
    return "{" + ", ".join(rows) + "}"


def _object(chart: Chart, row: tuple[float, ...]) -> str:
    pairs = (f'"{label}": {bare(chart, value)}' for label, value in zip(chart.labels, row, strict=True))
    return "{" + ", ".join(pairs) + "}"


def bare(chart: Chart, value: float) -> str:
    """A value without prefix and unit."""
    text = chart.show(value)
    return text[len(chart.prefix) : len(text) - len(chart.unit)]
