"""Questions: answers worked out again from the data, wordings varied, refusals exact."""

from __future__ import annotations

import json
import random
import re

import pytest

from recipe.charts import KIND_NAMES, Chart, make_chart
from recipe.facts import SINGLE
from recipe.facts_many import MANY
from recipe.questions import GREETING, NO_CHART, OFF_TOPIC, QA, ask, greeting, no_picture, off_topic
from recipe.recognise import matches
from recipe.sample import conversation
from recipe.wordings import MARK, grammar, phrase


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]


def _chart(seed: int, kind: str = "", single: bool = False) -> Chart:
    while True:
        chart = make_chart(random.Random(seed), "train", kind)
        if chart.readable and (not single or len(chart.series) == 1):
            return chart
        seed += 1000


def _mentioned(chart: Chart, question: str) -> list[str]:
    """Labels of the chart that a question names, longest first, in order of appearance."""
    left, found = question.lower(), []
    for label in sorted(chart.labels, key=len, reverse=True):
        match = re.search(rf"(?<!\w){re.escape(label.lower())}(?!\w)", left)
        if match:
            found.append((match.start(), label))
            left = left[: match.start()] + "#" * len(label) + left[match.end() :]
    return [label for _, label in sorted(found)]


def _asked(kind: str, seeds: range, section: str = "", chart_kind: str = "") -> list[tuple[Chart, QA]]:
    pairs = []
    for seed in seeds:
        chart = _chart(seed, chart_kind, single=True)
        for one in ask(random.Random(seed), [chart], count=3, kind=kind):
            if not section or one.section.startswith(section):
                pairs.append((chart, one))
    assert pairs
    return pairs


def test_values() -> None:
    checked = 0
    for chart, one in _asked("value", range(60), "value"):
        named = _mentioned(chart, one.question)
        if len(named) == 1:
            assert one.answer == chart.show(chart.values[0][chart.labels.index(named[0])])
            checked += 1
    assert checked > 60


def test_extremes() -> None:
    for chart, one in _asked("extremes", range(60)):
        row = chart.values[0]
        largest = row.index(max(row)) if not one.section.startswith("min") else row.index(min(row))
        if one.section in ("max_value", "min_value"):
            assert one.answer == chart.show(row[largest])
        elif one.section.startswith(("max_label", "min_label")):
            assert one.answer == chart.labels[largest]
        elif one.section == "second_label":
            assert row[chart.labels.index(one.answer)] == sorted(row)[-2]


def test_counts() -> None:
    for chart, one in _asked("count", range(30), "count"):
        assert one.answer == str(len(chart.labels))
    for chart, one in _asked("count_beyond", range(30)):
        asked = chart.title + "".join(chart.labels)
        limit = _numbers(one.question)[-1] if not any(char.isdigit() for char in asked) else None
        if limit is not None and f"{limit:g}" in one.question and "chart" not in one.question.rsplit(f"{limit:g}")[-1]:
            above = sum(value > limit for value in chart.values[0])
            assert one.answer == str(above if one.section == "count_above" else len(chart.labels) - above)


def test_differences_and_sums() -> None:
    for kind, combine in (("difference", lambda a, b: abs(a - b)), ("sum", lambda a, b: a + b)):
        for chart, one in _asked(kind, range(60)):
            row, number = chart.values[0], _numbers(one.answer)[0]
            named = _mentioned(chart, one.question)
            if one.section == "range":
                assert number == pytest.approx(max(row) - min(row), abs=0.06)
            elif one.section.startswith("total"):
                assert number == pytest.approx(sum(row), abs=0.06)
            elif one.section == "mean":
                assert number == pytest.approx(sum(row) / len(row), abs=0.06)
            elif len(named) == 2:
                values = [row[chart.labels.index(label)] for label in named]
                assert number == pytest.approx(combine(*values), abs=0.06)


def test_orders() -> None:
    for chart, one in _asked("order", range(60)):
        names = one.answer.split(", ")
        values = [chart.values[0][chart.labels.index(name)] for name in names]
        down = one.section in ("sort_down", "top_list")
        assert values == sorted(chart.values[0], reverse=down)[: len(values)]
        assert len(names) == len(chart.labels) or "list" in one.section


def test_titles_kinds_colours_lists() -> None:
    for chart, one in _asked("title", range(20)):
        assert one.answer == chart.title
    for chart, one in _asked("chart_kind", range(20)):
        assert one.answer == KIND_NAMES[chart.kind]
    for chart, one in _asked("color", range(60)):
        if one.section == "label_of_color":
            assert chart.colors[chart.labels.index(one.answer)] in one.question.lower()
        elif one.section == "color_of":
            named = _mentioned(chart, one.question)
            assert len(named) != 1 or one.answer == chart.colors[chart.labels.index(named[0])]
    for chart, one in _asked("list", range(30)):
        wanted = map(chart.show, chart.values[0]) if one.section == "values" else chart.labels
        assert one.answer == ", ".join(wanted)


def test_comparisons_and_choices() -> None:
    for chart, one in _asked("compare", range(60), "compare"):
        named = _mentioned(chart, one.question)
        if len(named) == 2:
            first, second = (chart.values[0][chart.labels.index(name)] for name in named)
            assert one.answer == ("yes" if (first > second) != (one.section == "compare_less") else "no")
    for chart, one in _asked("choice", range(60)):
        named = _mentioned(chart, one.question)
        if len(named) == 2:
            pick = max if one.section == "larger_of" else min
            assert one.answer == pick(named, key=lambda name: chart.values[0][chart.labels.index(name)])


def test_json_reads_back() -> None:
    for chart, one in _asked("json", range(30)):
        assert json.loads(one.answer) == pytest.approx(dict(zip(chart.labels, chart.values[0], strict=True)))


def test_descriptions_state_only_what_is_there() -> None:
    for seed in range(60):
        chart = _chart(seed)
        text = ask(random.Random(seed), [chart], kind="describe")[0].answer
        values = {float(chart.show(value).strip("$%")) for row in chart.values for value in row}
        for name in sorted((f'"{chart.title}"', *chart.labels, *chart.series), key=len, reverse=True):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "#", text)
        assert set(_numbers(text.replace(",", ";"))) <= values | {len(chart.labels), len(chart.series)}, text


def test_several_charts() -> None:
    for seed in range(40):
        talk = conversation(random.Random(seed), images=3)
        charts = talk.charts
        for one in ask(random.Random(seed), charts, count=12):
            assert one.images == 3
            if one.section == "which_label":
                number = int(one.answer.split()[1]) - 1
                assert any(label.lower() in one.question.lower() for label in charts[number].labels)
            elif one.section == "which_most":
                counts = [len(chart.labels) for chart in charts]
                assert counts[int(one.answer.split()[1]) - 1] == max(counts)
            elif one.section == "which_max":
                tops = [max(map(max, chart.values)) for chart in charts]
                assert tops[int(one.answer.split()[1]) - 1] == max(tops)
            elif one.section == "how_many_charts":
                assert one.answer == "3"
            elif one.section == "titles":
                assert one.answer.split("; ") == [chart.title for chart in charts]


def test_refusals_are_exact() -> None:
    rng = random.Random(1)
    chart = _chart(4)
    assert {off_topic(rng).answer for _ in range(50)} == {OFF_TOPIC} == {"I only read charts."}
    assert no_picture(rng, [chart]).answer == NO_CHART == "I see no chart. Please attach one."
    assert greeting(rng).answer == GREETING
    assert len({off_topic(rng).question for _ in range(400)}) > 390


def test_every_section_is_used_and_has_no_open_slots() -> None:
    rng = random.Random(2)
    slots = dict.fromkeys(("cat", "cats", "chart", "charts", "M", "invented"), "word")
    slots |= dict.fromkeys(
        ("X", "Y", "A", "B", "C", "S", "T", "K", "Ks", "V", "N", "n", "side", "next", "prev"), "Zork"
    )
    slots |= dict.fromkeys(("XI", "YJ", "AI", "BJ"), "Zork in chart 1")
    for section in grammar():
        for _ in range(40):
            assert MARK not in phrase(rng, section, slots)


@pytest.mark.parametrize("section", ["value", "max_label", "title", "difference", "count", "describe"])
def test_thousands_of_surface_forms(section: str) -> None:
    rng = random.Random(9)
    slots = {"cat": "bar", "cats": "bars", "X": "Oslo", "Y": "Rome", "A": "Oslo", "B": "Rome"}
    assert len({phrase(rng, section, slots) for _ in range(1500)}) > 1150


def test_sentences_of_the_grammar_are_recognised() -> None:
    rng = random.Random(4)
    slots = {"cat": "bar", "cats": "bars", "X": "Oslo", "Y": "Rome", "A": "Oslo", "B": "Rome", "chart": "chart"}
    for section in ("value", "max_label", "count", "sum", "title"):
        made = [phrase(rng, section, slots) for _ in range(60)]
        known = [matches(section, text, ("Oslo", "Rome", "bar", "bars")) for text in made]
        assert sum(known) >= 45, [text for text, found in zip(made, known, strict=True) if not found]
    assert not matches("value", "Which way to the station?", ("Oslo", "bar"))


def test_conversations() -> None:
    sizes = set()
    for seed in range(120):
        talk = conversation(random.Random(seed))
        sizes.add(len(talk.charts))
        pictures = [part[1] for part in talk.parts if part[0] == "image"]
        assert pictures == list(range(len(talk.charts)))
        assert talk.turns[0].question in [part[1] for part in talk.parts]
        assert talk.turns
    assert {0, 1, 2, 3, 4} <= sizes
    assert conversation(random.Random(8)).turns == conversation(random.Random(8)).turns


def test_every_kind_can_be_asked() -> None:
    for kind in SINGLE:
        assert any(ask(random.Random(seed), [_chart(seed)], kind=kind) for seed in range(40)), kind
    for kind in MANY:
        assert any(
            ask(random.Random(s), conversation(random.Random(s), images=2).charts, kind=kind) for s in range(40)
        ), kind
