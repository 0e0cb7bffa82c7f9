"""Makes the held-out sets and the bundled pictures again: `python -m recipe.make_eval [set ...]`.

Owns the fixed seeds, the balance over kinds and image counts, and the files under `foveate/demo/eval` and
`foveate/demo/pictures`. Promises the same files from the same recipe; pictures are stored with a palette and are scored
as stored. Refuses to run in training: matplotlib, altair and the public tables are needed for some sets.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from recipe import gallery, library
from recipe.charts import Chart, make_chart
from recipe.facts import SINGLE
from recipe.facts_many import MANY
from recipe.questions import QA, ask
from recipe.sample import charts_together

DEMO = Path(__file__).parent.parent / "foveate" / "demo"
EVAL, PICTURES = DEMO / "eval", DEMO / "pictures"
HANDWRITTEN = Path(__file__).parent / "handwritten.json"
PER_COUNT = {1: 100, 2: 40, 3: 40, 4: 40}
KINDS_ALONE = (*(kind for kind in SINGLE if kind != "describe"), "value", "extremes")
KINDS_TOGETHER = tuple(kind for kind in MANY if kind not in ("describe_all", "count_charts"))
Row = dict[str, Any]


def save(image: Image.Image, path: Path) -> str:
    """Writes a picture with at most 128 colours; returns its name below the set's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    return path.relative_to(path.parent.parent).as_posix() if path.parent.name == "img" else path.name


def write(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def row_of(name: str, images: list[str], one: QA) -> Row:
    return {"id": name, "images": images, "question": one.question, "answer": one.answer, "kind": one.kind,
            "numeric": one.numeric}  # fmt: skip


def wanted_kind(number: int, place: int) -> str:
    """Kinds in turn; with several pictures every other question is about all of them."""
    if number > 1 and place % 2:
        return KINDS_TOGETHER[place // 2 % len(KINDS_TOGETHER)]
    step = place if number == 1 else place // 2
    return KINDS_ALONE[(step * (1 if number == 1 else 3) + number) % len(KINDS_ALONE)]


def draw_question(seed: str, number: int, kind: str) -> tuple[tuple[Chart, ...], QA]:
    """Charts of the test split with one question of the kind."""
    for attempt in range(200):
        rng = random.Random(f"{seed}-{attempt}")
        charts = charts_together(rng, number, "test")
        found = ask(rng, charts, "test", 1, kind)
        if found:
            return charts, found[0]
    raise RuntimeError(f"no chart for {kind}")


def make_charts220() -> None:
    """One hundred questions with one chart, forty each with two, three and four."""
    rows = []
    for number, count in PER_COUNT.items():
        for place in range(count):
            name = f"c{number}-{place:03d}"
            charts, one = draw_question(f"charts220-{name}", number, wanted_kind(number, place))
            images = [save(chart.image, EVAL / "img" / f"{name}-{at}.png") for at, chart in enumerate(charts, 1)]
            rows.append(row_of(name, images, one))
    write(EVAL / "charts220.jsonl", rows)


def make_wordings60() -> None:
    """The hand-written questions with their charts; answers are checked against the charts in the tests."""
    rows, stored = [], {}
    for place, entry in enumerate(json.loads(HANDWRITTEN.read_text(encoding="utf-8"))):
        for at in entry["charts"]:
            if at not in stored:
                stored[at] = save(wordings_chart(at).image, EVAL / "img" / f"w{at:02d}.png")
        images = [stored[at] for at in entry["charts"]]
        numeric = entry["kind"] in ("value", "count", "count_beyond", "sum", "difference")
        rows.append(row_of(f"w-{place:02d}", images,
                           QA(entry["question"], entry["answer"], entry["kind"], len(images), numeric)))  # fmt: skip
    write(EVAL / "wordings60.jsonl", rows)


def wordings_chart(at: int) -> Chart:
    """The chart that a hand-written question means by its number."""
    return make_chart(random.Random(f"wordings60-{at}"), "test")


def make_describe100() -> None:
    """Charts to describe, with the data that every number of the description is checked against."""
    rows = []
    for place in range(100):
        charts, one = draw_question(f"describe100-{place}", 1, "describe")
        chart = charts[0]
        image = save(chart.image, EVAL / "img" / f"d{place:03d}.png")
        rows.append(row_of(f"d-{place:03d}", [image], one) | {"data": data_of(chart)})
    write(EVAL / "describe100.jsonl", rows)


def data_of(chart: Chart) -> Row:
    """What a description may state: title, labels, series and values as shown."""
    return {
        "title": chart.title,
        "labels": list(chart.labels),
        "series": list(chart.series),
        "values": [[chart.show(value) for value in row] for row in chart.values],
        "readable": chart.readable,
    }


def make_matplotlib30() -> None:
    """Charts with matplotlib's default looks."""
    rows = []
    for place, entry in enumerate(library.entries()):
        text, numeric = library.answer(entry)
        image = save(library.draw(entry), EVAL / "img" / f"m{place:02d}.png")
        kind = f"{entry['kind']} {'printed' if entry['printed'] else 'axis only'}"
        one = QA(entry["question"], text, kind, 1, numeric)
        rows.append(row_of(f"m-{place:02d}", [image], one) | {"source": entry["source"]})
    write(EVAL / "matplotlib30.jsonl", rows)


def make_pictures() -> None:
    """A dozen pictures to try, and the quick sets."""
    rows = []
    for name, image, one, source in gallery.pictures():
        rows.append({"file": save(image, PICTURES / f"{name}.png"), "question": one.question, "answer": one.answer,
                     "kind": one.kind, "numeric": one.numeric, "source": source})  # fmt: skip
    write(PICTURES / "pictures.jsonl", rows)
    write(PICTURES / "quick.jsonl", gallery.quick())


SETS: dict[str, Callable[[], None]] = {
    "charts220": make_charts220,
    "wordings60": make_wordings60,
    "describe100": make_describe100,
    "matplotlib30": make_matplotlib30,
    "pictures": make_pictures,
}


def main(names: list[str]) -> None:
    """Makes the named sets, or all."""
    unknown = set(names) - set(SETS)
    if unknown:
        raise SystemExit(f"no such set: {', '.join(sorted(unknown))} (there are {', '.join(SETS)})")
    for name in names or SETS:
        SETS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
