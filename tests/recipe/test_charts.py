"""The chart generator: data and pixels agree, words of the two splits stay apart, seeds decide everything."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pytest

from recipe.charts import KINDS, SIZES, Chart, make_chart
from recipe.scale import library_scale, snap, tidy_scale
from recipe.words import SMALL, held_out, invent, lists

CLOSED = {word for words in lists()["closed"].values() for entry in words for word in re.findall(r"[^\W\d_]+", entry)}
HEADERS = {"value", "name", "item", "category"}


@pytest.fixture(scope="module")
def charts() -> dict[str, list[Chart]]:
    return {split: [make_chart(random.Random(seed), split) for seed in range(260)] for split in ("train", "test")}


def test_every_kind_comes_up(charts: dict[str, list[Chart]]) -> None:
    for group in charts.values():
        assert set(Counter(chart.kind for chart in group)) == set(KINDS)


def test_pictures_need_no_resizing(charts: dict[str, list[Chart]]) -> None:
    for group in charts.values():
        for chart in group:
            assert chart.image.mode == "RGB"
            assert chart.image.size in SIZES
            assert chart.image.width % 32 == chart.image.height % 32 == 0


def test_characters_lie_inside_and_cover_title_and_labels(charts: dict[str, list[Chart]]) -> None:
    for group in charts.values():
        for chart in group:
            width, height = chart.image.size
            assert all(0 <= x < width and 0 <= y < height for _, x, y in chart.glyphs)
            drawn = Counter(char for char, _, _ in chart.glyphs)
            wanted = Counter((chart.title + "".join(chart.labels)).replace(" ", ""))
            assert not wanted - drawn, (chart.title, wanted - drawn)


def test_printed_values_are_drawn(charts: dict[str, list[Chart]]) -> None:
    for chart in charts["train"]:
        if chart.printed:
            drawn = Counter(char for char, _, _ in chart.glyphs if char.isdigit())
            shown = "".join(chart.show(value) for row in chart.values for value in row)
            assert not Counter(re.sub(r"\D", "", shown)) - drawn


def test_characters_have_ink_under_them(charts: dict[str, list[Chart]]) -> None:
    """Around nearly every recorded centre the picture is not flat."""
    for chart in charts["train"][:40]:
        pixels = np.asarray(chart.image).astype(int)
        flat = 0
        for _, x, y in chart.glyphs:
            patch = pixels[max(0, int(y) - 8) : int(y) + 9, max(0, int(x) - 7) : int(x) + 8]
            flat += int(np.ptp(patch.reshape(-1, 3), axis=0).max() < 40)
        assert flat <= 0.02 * len(chart.glyphs) + 1


def test_shape_of_the_data(charts: dict[str, list[Chart]]) -> None:
    for group in charts.values():
        for chart in group:
            assert len(chart.values) == len(chart.series)
            assert all(len(row) == len(chart.labels) for row in chart.values)
            assert len(set(chart.labels)) == len(chart.labels)
            assert chart.absent not in chart.labels
            if chart.colored in ("label", "series"):
                names = chart.labels if chart.colored == "label" else chart.series
                assert len(chart.colors) == len(names) == len(set(chart.colors))


def test_shares_add_up(charts: dict[str, list[Chart]]) -> None:
    for chart in charts["train"]:
        if chart.kind == "pie" and chart.unit == "%":
            assert sum(chart.values[0]) == pytest.approx(100, abs=0.01)


def _open_words(chart: Chart) -> set[str]:
    text = " ".join((chart.title, *chart.labels, *(() if chart.series == ("value",) else chart.series), chart.measure))
    words = re.findall(r"[^\W\d_]{2,}", text)
    return {word.lower() for word in words if word not in CLOSED} - SMALL - HEADERS


def test_no_test_word_is_ever_trained_on(charts: dict[str, list[Chart]]) -> None:
    for chart in charts["train"]:
        assert not {word for word in _open_words(chart) if held_out(word)}, chart.title
    for chart in charts["test"]:
        assert all(held_out(word) for word in _open_words(chart)), (chart.title, chart.labels)


def test_invented_words_respect_the_split() -> None:
    rng = random.Random(3)
    assert all(held_out(invent(rng, "test")) for _ in range(50))
    assert not any(held_out(invent(rng, "train")) for _ in range(200))


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_seed_decides_everything(split: str) -> None:
    one, two = (make_chart(random.Random(77), split) for _ in range(2))
    assert one.image.tobytes() == two.image.tobytes()
    assert (one.title, one.labels, one.values, one.glyphs) == (two.title, two.labels, two.values, two.glyphs)


def test_labels_can_be_given() -> None:
    chart = make_chart(random.Random(5), "train", "table", labels=("Ab", "Cd"), title="Given")
    assert chart.labels[:2] == ("Ab", "Cd")
    assert chart.title == "Given"


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="no such split"):
        make_chart(random.Random(0), "validation")


def test_scales_cover_and_snap_keeps_to_ticks() -> None:
    rng = random.Random(1)
    for _ in range(300):
        values = tuple(round(rng.uniform(1, 900)) for _ in range(6))
        for scale in (tidy_scale(rng, max(values), 5, 0), library_scale(0, max(values), 350, 14, zero=True)):
            assert scale.low <= min(values) and scale.high >= max(values) * 0.999
            rows, _ = snap(rng, scale, (values,), 0)
            parts = (4, 5)
            assert all(
                any(abs(value / scale.step * part - round(value / scale.step * part)) < 1e-4 for part in parts)
                for value in rows[0]
            )
