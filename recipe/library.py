"""Charts drawn by plotting libraries, not by this recipe: matplotlib defaults, and Vega-Lite through Altair.

Owns the drawing calls and the answers worked out from `library_charts.json` and from public tables. Promises default
looks (no style is set beyond titles and labels) and that unprinted values lie on or midway between tick marks. Refuses
to be imported by training code: matplotlib and altair are needed only to make the checked-in pictures again.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

ENTRIES = Path(__file__).parent / "library_charts.json"
CYCLE = ("blue", "orange", "green", "red", "purple", "brown", "pink", "gray", "olive", "cyan")


def entries() -> list[dict[str, Any]]:
    """The descriptions of the thirty charts with their questions."""
    return json.loads(ENTRIES.read_text(encoding="utf-8"))


def answer(entry: dict[str, Any]) -> tuple[str, bool]:
    """The right answer to an entry's question, and whether it is a number."""
    labels, values, args = entry["labels"], entry["values"], entry["args"]
    of = dict(zip(labels, values, strict=True))
    ranked = sorted(labels, key=lambda label: of[label], reverse=True)
    number = {
        "value": lambda: of[args[0]],
        "diff": lambda: abs(of[args[0]] - of[args[1]]),
        "sum": lambda: of[args[0]] + of[args[1]],
    }
    if entry["op"] in number:
        return show(entry, number[entry["op"]]()), True
    if entry["op"] == "count":
        return str(len(labels)), True
    text = {
        "max_label": lambda: ranked[0],
        "second_label": lambda: ranked[1],
        "min_label": lambda: ranked[-1],
        "title": lambda: entry["title"],
        "more": lambda: "yes" if of[args[0]] > of[args[1]] else "no",
        "color": lambda: CYCLE[labels.index(args[0])],
    }
    return text[entry["op"]](), False


def show(entry: dict[str, Any], value: float) -> str:
    """A value as answers write it."""
    text = f"{value:.{entry['decimals']}f}"
    if not entry["printed"] and "." in text:
        text = text.rstrip("0").rstrip(".")
    return text + entry["unit"]


def draw(entry: dict[str, Any]) -> Image.Image:
    """The entry drawn by matplotlib with its default style, 640 by 480 pixels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(matplotlib.rcParamsDefault | {"backend": "agg"}):
        figure, axes = plt.subplots()
        _MARKS[entry["kind"]](axes, entry)
        axes.set_title(entry["title"])
        if entry["ylabel"]:
            axes.set_ylabel(entry["ylabel"])
        if entry["xlabel"]:
            axes.set_xlabel(entry["xlabel"])
        packed = io.BytesIO()
        figure.savefig(packed, format="png")
        plt.close(figure)
    return Image.open(packed).convert("RGB")


def _bars(axes: Any, entry: dict[str, Any]) -> None:
    bars = axes.bar(entry["labels"], entry["values"])
    if entry["printed"]:
        axes.bar_label(bars)


def _level_bars(axes: Any, entry: dict[str, Any]) -> None:
    bars = axes.barh(entry["labels"], entry["values"])
    axes.invert_yaxis()
    if entry["printed"]:
        axes.bar_label(bars)


def _curve(axes: Any, entry: dict[str, Any]) -> None:
    axes.plot(entry["labels"], entry["values"], marker="o")
    if entry["printed"]:
        for at, value in enumerate(entry["values"]):
            text = f"{value:.{entry['decimals']}f}"
            axes.annotate(text, (at, value), textcoords="offset points", xytext=(0, 6), ha="center")


def _slices(axes: Any, entry: dict[str, Any]) -> None:
    axes.pie(entry["values"], labels=entry["labels"], autopct="%d%%" if entry["printed"] else None)


_MARKS = {"bar": _bars, "barh": _level_bars, "line": _curve, "pie": _slices}


def vega(rows: list[dict[str, Any]], mark: str, channels: dict[str, str], title: str) -> Image.Image:
    """A Vega-Lite chart with default looks; `channels` maps x and y to field shorthands."""
    import altair as alt
    import vl_convert

    chart = getattr(alt.Chart(alt.Data(values=rows), title=title), f"mark_{mark}")()
    chart = chart.encode(**{name: _channel(alt, name, field) for name, field in channels.items()})
    packed = vl_convert.vegalite_to_png(chart.properties(width=320, height=220).to_json(), scale=1.25)
    return Image.open(io.BytesIO(packed)).convert("RGB")


def _channel(alt: Any, name: str, field: str) -> Any:
    """Categories stay in the order of the rows."""
    maker = {"x": alt.X, "y": alt.Y}[name]
    return maker(field, sort=None) if field.endswith(":N") else maker(field)
