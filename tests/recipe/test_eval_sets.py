"""The held-out sets as checked in: complete, small, in step with the recipe, hand-written where they must be."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from foveate.evals.score import description_is_right
from recipe import library
from recipe.make_eval import DEMO, EVAL, PICTURES, data_of, draw_question, wanted_kind, wordings_chart
from recipe.questions import CATEGORIES, OFF_TOPIC, plural
from recipe.recognise import matches
from recipe.wordings import grammar

# Sections that are parts of sentences, not questions.
NAMES = (
    "val high low bigger smaller has have peak trough item "
    "ask_np ask_wh ask_c context hello close note thing place number"
)
PARTS = frozenset(NAMES.split())


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (EVAL / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_sizes_of_the_sets() -> None:
    assert Counter(len(row["images"]) for row in _rows("charts220")) == {1: 100, 2: 40, 3: 40, 4: 40}
    assert [len(_rows(name)) for name in ("wordings60", "describe100", "matplotlib30")] == [60, 100, 30]
    kinds = Counter(row["kind"] for row in _rows("charts220"))
    assert len(kinds) >= 20 and min(kinds.values()) >= 6


def test_pictures_are_there_and_small() -> None:
    named = {image for name in ("charts220", "wordings60", "describe100", "matplotlib30") for row in _rows(name)
             for image in row["images"]}  # fmt: skip
    stored = {path.relative_to(EVAL).as_posix() for path in EVAL.rglob("*.png")}
    assert named == stored
    assert sum(path.stat().st_size for path in DEMO.rglob("*.png")) < 6_000_000
    for name in sorted(named)[::25]:
        with Image.open(EVAL / name) as image:
            assert image.mode == "P" and image.width % 32 == image.height % 32 == 0


def test_ids_are_unique() -> None:
    ids = [row["id"] for name in ("charts220", "wordings60", "describe100", "matplotlib30") for row in _rows(name)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("place", [0, 7, 101, 141, 181])
def test_charts220_is_what_the_recipe_makes(place: int) -> None:
    row = _rows("charts220")[place]
    number = len(row["images"])
    charts, one = draw_question(f"charts220-{row['id']}", number, wanted_kind(number, int(row["id"].split("-")[1])))
    assert (one.question, one.answer, one.kind) == (row["question"], row["answer"], row["kind"])
    for chart, image in zip(charts, row["images"], strict=True):
        with Image.open(EVAL / image) as stored:
            assert stored.size == chart.image.size


def _handwritten_words() -> tuple[str, ...]:
    words: set[str] = set()
    for entry in json.loads((Path(library.__file__).parent / "handwritten.json").read_text(encoding="utf-8")):
        for at in entry["charts"]:
            chart = wordings_chart(at)
            words |= {chart.title, *chart.labels, *chart.series, *chart.colors, chart.measure, chart.entity}
            words |= {form for noun in (*CATEGORIES[chart.kind], chart.entity) if noun for form in (noun, plural(noun))}
    return tuple(sorted(words - {""}))


def test_no_template_yields_a_handwritten_question() -> None:
    words = _handwritten_words()
    for row in _rows("wordings60"):
        found = [name for name in grammar() if name not in PARTS and matches(name, row["question"], words)]
        assert not found, (row["question"], found)


def test_handwritten_answers_are_in_their_charts() -> None:
    entries = json.loads((Path(library.__file__).parent / "handwritten.json").read_text(encoding="utf-8"))
    for entry, row in zip(entries, _rows("wordings60"), strict=True):
        assert (entry["question"], entry["answer"]) == (row["question"], row["answer"])
        charts = [wordings_chart(at) for at in entry["charts"]]
        shown = {chart.show(value) for chart in charts for numbers in chart.values for value in numbers}
        names = {name for chart in charts for name in (*chart.labels, chart.title)}
        rows = [(chart, numbers) for chart in charts for numbers in chart.values]
        gaps = {chart.show(round(one - other, 1)) for chart, numbers in rows for one in numbers for other in numbers}
        if entry["kind"] == "value":
            assert row["answer"] in shown
        elif entry["kind"] in ("extremes", "choice", "position", "title"):
            assert row["answer"] in names
        elif entry["kind"] == "difference":
            assert row["answer"] in gaps
        elif entry["kind"] == "off_topic":
            assert row["answer"] == OFF_TOPIC


def test_reference_descriptions_pass_and_changed_ones_fail() -> None:
    for row in _rows("describe100"):
        assert description_is_right(row["answer"], row["data"]), row
        spots = [match for match in re.finditer(r"(?<= with )[$]?\d+", row["answer"])]
        if spots and row["data"]["readable"]:
            spot = spots[-1]
            wrong = row["answer"][: spot.start()] + spot[0] + "7" + row["answer"][spot.end() :]
            assert not description_is_right(wrong, row["data"]), wrong


def test_describe100_holds_the_data_of_its_charts() -> None:
    for place in (3, 50):
        charts, _ = draw_question(f"describe100-{place}", 1, "describe")
        assert _rows("describe100")[place]["data"] == data_of(charts[0])


def test_matplotlib_answers() -> None:
    for entry, row in zip(library.entries(), _rows("matplotlib30"), strict=True):
        assert (row["answer"], row["numeric"]) == library.answer(entry)
        if entry["op"] == "value":
            assert float(row["answer"].strip("%")) == entry["values"][entry["labels"].index(entry["args"][0])]
    printed = sum(entry["printed"] for entry in library.entries())
    assert printed == 15


def test_bundled_pictures_name_their_sources() -> None:
    rows = [json.loads(line) for line in (PICTURES / "pictures.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 12
    assert all((PICTURES / row["file"]).exists() and row["source"] for row in rows)
    assert sum("matplotlib" in row["source"] for row in rows) >= 4
    assert sum("Vega" in row["source"] for row in rows) >= 2
    quick = [json.loads(line) for line in (PICTURES / "quick.jsonl").read_text(encoding="utf-8").splitlines()]
    assert Counter(row["set"] for row in quick) == {"sanity": 6, "images": 9}
    assert all((PICTURES / image).exists() for row in quick for image in row["images"])
