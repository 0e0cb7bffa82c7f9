"""The pictures that come with the demo: four by this recipe, eight by plotting libraries from public tables.

Owns the choice of tables, questions and answers, and the two quick sets. Promises that every answer is computed from
the table and that each picture names its source. Refuses to run without the `vega-datasets` package, whose tables are
read but not copied.
"""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from recipe import library
from recipe.charts import Chart, make_chart
from recipe.questions import QA

Picture = tuple[str, Image.Image, QA, str]
OWN = "drawn by this recipe, words and styles not trained on; the licence of this project"
DOT = "US Department of Transportation (public domain), by vega-datasets airports.csv"
PLAYFAIR = "William Playfair, 1822 (public domain), by vega-datasets wheat.json"
NIGHTINGALE = "Florence Nightingale, 1858 (public domain), by vega-datasets crimea.json"
EIA = "US Energy Information Administration (public domain), by vega-datasets iowa-electricity.csv"
NOAA = "US National Oceanic and Atmospheric Administration (public domain), by vega-datasets seattle-weather.csv"
# Name, kind, seed; question and answer come from the chart.
RECIPE_PICTURES = (
    ("recipe-bar", "bar", 3),
    ("recipe-line", "line", 4),
    ("recipe-pie", "pie", 7),
    ("recipe-table", "table", 2),
)
# Question, operation and arguments for charts drawn by matplotlib.
ASKED: dict[str, tuple[str, str, list[str]]] = {
    "mpl-airports": ("How many airports does CA have?", "value", ["CA"]),
    "mpl-wheat": ("In which year was it highest?", "max_label", []),
    "mpl-crimea": ("What is the difference between Jan and Feb?", "diff", ["Jan", "Feb"]),
    "mpl-iowa": ("Which slice is the largest?", "max_label", []),
}
CROPS = {"Corn": 40, "Soy": 25, "Oats": 10, "Hay": 20}


def _table(name: str) -> list[dict[str, Any]]:
    import vega_datasets

    path = Path(vega_datasets.__file__).parent / "_data" / name
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else list(csv.DictReader(text.splitlines()))


def pictures() -> Iterator[Picture]:
    """Name, picture, question with answer, and source of each."""
    for name, kind, seed in RECIPE_PICTURES:
        chart = recipe_chart(kind, seed)
        yield name, chart.image, _own_question(chart), OWN
    yield from _matplotlib_pictures()
    yield from _vega_pictures()


def recipe_chart(kind: str, seed: int) -> Chart:
    """One of the four charts made here: readable, one series."""
    while True:
        chart = make_chart(random.Random(f"pictures-{kind}-{seed}"), "test", kind)
        if chart.readable and len(chart.series) == 1 and chart.title and len(set(chart.values[0])) > 2:
            return chart
        seed += 100


def _own_question(chart: Chart) -> QA:
    row = chart.values[0]
    top = chart.labels[row.index(max(row))]
    if chart.kind in ("bar", "table"):
        return QA(f"What is the value of {chart.labels[1]}?", chart.show(row[1]), "value", 1, True)
    if chart.kind == "line":
        return QA("Which category has the highest value?", top, "extremes", 1)
    return QA("What is the title of the chart?", chart.title, "title", 1)


def _entry(kind: str, title: str, data: dict[str, float]) -> dict[str, Any]:
    """A chart with printed values in the form that `library` draws."""
    form = {"ylabel": "", "xlabel": "", "decimals": 0, "unit": "%" if kind == "pie" else "", "printed": True}
    return {"kind": kind, "title": title, "labels": list(data), "values": list(data.values()), **form}


def _matplotlib_pictures() -> Iterator[Picture]:
    airports = dict(Counter(row["state"] for row in _table("airports.csv")).most_common(5))
    wheat = {
        row["year"]: row["wheat"]
        for row in _table("wheat.json")
        if row["year"] in ("1600", "1650", "1700", "1750", "1800")
    }
    months = {
        "1854-09": "Sep",
        "1854-10": "Oct",
        "1854-11": "Nov",
        "1854-12": "Dec",
        "1855-01": "Jan",
        "1855-02": "Feb",
    }
    deaths = {months[row["date"][:7]]: row["disease"] for row in _table("crimea.json") if row["date"][:7] in months}
    power = {
        row["source"]: int(row["net_generation"]) for row in _table("iowa-electricity.csv") if row["year"][:4] == "2017"
    }
    drawn = (
        ("mpl-airports", _entry("barh", "Airports by state", airports), DOT),
        ("mpl-wheat", _entry("line", "Price of wheat in England", wheat), PLAYFAIR),
        ("mpl-crimea", _entry("bar", "Deaths from disease in the Crimean War", deaths), NIGHTINGALE),
        ("mpl-iowa", _entry("pie", "Electricity of Iowa in 2017", _shares(power)), EIA),
    )
    for name, entry, source in drawn:
        text, op, args = ASKED[name]
        answer, numeric = library.answer(entry | {"op": op, "args": args})
        one = QA(text, answer, op, 1, numeric)
        yield name, library.draw(entry), one, f"matplotlib defaults; {source}"


def _shares(amounts: dict[str, int]) -> dict[str, float]:
    total = sum(amounts.values())
    return {name: 100 * amount / total for name, amount in amounts.items()}


def _vega_pictures() -> Iterator[Picture]:
    weather = Counter(row["weather"] for row in _table("seattle-weather.csv") if row["date"].startswith("2012"))
    days = [{"weather": name, "days": number} for name, number in weather.most_common()]
    power = [
        {"year": row["year"][:4], "generation": int(row["net_generation"])}
        for row in _table("iowa-electricity.csv")
        if row["source"] == "Renewables" and 2010 <= int(row["year"][:4]) <= 2017
    ]
    crops = [{"crop": name, "share": share} for name, share in CROPS.items()]
    upright = library.vega(days, "bar", {"x": "weather:N", "y": "days:Q"}, "Weather of Seattle in 2012")
    level = library.vega(days, "bar", {"y": "weather:N", "x": "days:Q"}, "Days by weather")
    line = library.vega(power, "line", {"x": "year:N", "y": "generation:Q"}, "Renewable electricity in Iowa")
    invented = library.vega(crops, "bar", {"x": "crop:N", "y": "share:Q"}, "Invented crops")
    title = QA("What is the title of the chart?", "Renewable electricity in Iowa", "title", 1)
    most = QA("Which category is the highest?", days[0]["weather"], "max_label", 1)
    count = QA("How many bars are there?", str(len(days)), "count", 1, True)
    value = QA("What is the value of Oats?", str(CROPS["Oats"]), "value", 1, True)
    yield "vega-weather", upright, most, f"Vega-Lite defaults; {NOAA}"
    yield "vega-weather-bars", level, count, f"Vega-Lite defaults; {NOAA}"
    yield "vega-renewables", line, title, f"Vega-Lite defaults; {EIA}"
    yield "vega-crops", invented, value, "Vega-Lite defaults; invented numbers"


def quick() -> list[dict[str, Any]]:
    """Two sets: "sanity" (one picture, plain questions) and "images" (nine questions with one to four pictures)."""
    files = [f"{name}.png" for name, _, _ in RECIPE_PICTURES]
    charts = [recipe_chart(kind, seed) for _, kind, seed in RECIPE_PICTURES]
    rows = []
    for file, chart in zip(files, charts, strict=True):
        rows.append(
            _quick("sanity", [file], f"What is the value of {chart.labels[0]}?", chart.show(chart.values[0][0]))
        )
    rows.append(_quick("sanity", [files[0]], "What is the title?", charts[0].title))
    rows.append(_quick("sanity", [files[3]], "Write a poem about the sea.", "I only read charts."))
    for number in (1, 2, 3, 4):
        for at in sorted({0, number - 1}):
            chart, label = charts[at], charts[at].labels[-1]
            where = f" in chart {at + 1}" if number > 1 else ""
            rows.append(
                _quick(
                    "images", files[:number], f"What is the value of {label}{where}?", chart.show(chart.values[0][-1])
                )
            )
    rows.append(_quick("images", files[:3], f"Which chart shows {charts[2].labels[0]}?", "Chart 3"))
    rows.append(_quick("images", files[:4], "How many charts are there?", "4"))
    return rows


def _quick(name: str, files: list[str], question: str, answer: str) -> dict[str, Any]:
    openings = {"What is the title": "title", "Write": "off_topic", "Which chart": "which_has", "How many": "count"}
    kind = next((kind for opening, kind in openings.items() if question.startswith(opening)), "value")
    numeric = kind in ("value", "count")
    return {"set": name, "images": files, "question": question, "answer": answer, "kind": kind, "numeric": numeric}
