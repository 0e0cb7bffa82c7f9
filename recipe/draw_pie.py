"""Pies and rings.

Owns where slices start, which way they run, and where names and values go: beside the slice, inside it, or in a legend.
Promises that names do not cover one another (it falls back to a legend). A few pies print no values; their `printed`
is False, and only comparisons of clearly different slices make sense. Refuses to know about questions.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from recipe.canvas import Canvas, Point
from recipe.draw_bars import value_text
from recipe.draw_frame import Area, draw_title, whole
from recipe.figures import Figures
from recipe.style import Color, Style

BESIDE = 1.12  # names stand this many radii from the centre


@dataclass(frozen=True)
class _Ring:
    """Where a pie lies and how its slices run; angles in degrees clockwise from 3 o'clock."""

    center: Point
    radius: float
    hole: float
    spans: tuple[tuple[float, float], ...]

    def beside(self, at: int, reach: float) -> Point:
        """The point at `reach` radii along the middle of slice `at`."""
        middle = math.radians(sum(self.spans[at]) / 2)
        return (
            self.center[0] + self.radius * reach * math.cos(middle),
            self.center[1] + self.radius * reach * math.sin(middle),
        )


def draw_pie(rng: random.Random, canvas: Canvas, style: Style, figures: Figures) -> Figures:
    """A pie with names, values and maybe a legend."""
    colors = style.colors[: len(figures.labels)]
    printed = rng.random() < 0.92
    area = draw_title(canvas, style, figures.title, whole(canvas))
    texts = [value_text(style, figures, value) for value in figures.values[0]]
    library = style.look == "mpl"
    place = rng.choices(("inside", "name", "legend"), (8, 1, 1) if library else (4, 3, 3))[0] if printed else "none"
    legend = place == "legend" or rng.random() < (0.1 if library else 0.35)
    spans = _spans(figures.values[0], library)
    hole = rng.uniform(0.4, 0.6) if not library and rng.random() < 0.2 else 0.0
    names = list(figures.labels)
    if place == "name" and not legend:
        names = [f"{name} {text}" if hole else f"{name} ({text})" for name, text in zip(names, texts, strict=True)]
    ring = _place(area, spans, hole, max(map(style.face.width, names)) + 8 if not legend else 0)
    if not legend and (ring.radius < 45 or _crowded(style, ring, names)):
        legend, names = True, list(figures.labels)
    if legend:
        names = list(figures.labels)
        shown = place == "name" or (place == "legend")
        rows = [f"{name} {text}" for name, text in zip(names, texts, strict=True)] if shown else names
        area = _legend(canvas, style, rows, colors, area)
        ring = _place(area, spans, hole, 8 if place != "inside" else style.face.width("100.0%"))
    pieces = [(start, end, color.paint) for (start, end), color in zip(spans, colors, strict=True)]
    canvas.slices(ring.center, ring.radius, pieces, hole)
    if style.look == "plain" and not hole and rng.random() < 0.5:
        _seams(canvas, style, ring)
    if place == "inside":
        _inside(canvas, style, ring, texts, colors)
    if not legend:
        _beside(canvas, style, ring, names)
    return replace(figures, printed=printed, colors=colors, ordered=legend)


def _spans(values: tuple[float, ...], library: bool) -> tuple[tuple[float, float], ...]:
    """Slices clockwise from the top, or counter-clockwise from 3 o'clock as one library has it."""
    total, done = sum(values), 0.0
    spans = []
    for value in values:
        turn = 360 * value / total
        spans.append((-done - turn, -done) if library else (done - 90, done + turn - 90))
        done += turn
    return tuple(spans)


def _place(area: Area, spans: tuple[tuple[float, float], ...], hole: float, side: float) -> _Ring:
    high = (area.height / 2 - 9) / BESIDE if side else area.height / 2 - 6
    radius = max(20.0, min((area.width / 2 - side) / (BESIDE if side > 8 else 1.0), high))
    center = ((area.left + area.right) / 2, (area.top + area.bottom) / 2)
    return _Ring(center, radius, hole, spans)


def _boxes(style: Style, ring: _Ring, names: list[str]) -> list[tuple[float, float, float]]:
    """Left, right and middle height of each name beside its slice."""
    boxes = []
    for at, name in enumerate(names):
        x, y = ring.beside(at, BESIDE)
        width, lean = style.face.width(name), (x - ring.center[0]) / ring.radius
        left = x - width / 2 if abs(lean) < 0.15 else x if lean > 0 else x - width
        boxes.append((left, left + width, y))
    return boxes


def _crowded(style: Style, ring: _Ring, names: list[str]) -> bool:
    boxes = _boxes(style, ring, names)
    near = style.face.size + 1
    return any(
        abs(one[2] - two[2]) < near and one[0] < two[1] + 4 and two[0] < one[1] + 4
        for at, one in enumerate(boxes)
        for two in boxes[at + 1 :]
    )


def _beside(canvas: Canvas, style: Style, ring: _Ring, names: list[str]) -> None:
    for at, name in enumerate(names):
        x, y = ring.beside(at, BESIDE)
        lean = (x - ring.center[0]) / ring.radius
        canvas.text((x, y), name, style.face, style.ink, "mm" if abs(lean) < 0.15 else "lm" if lean > 0 else "rm")


def _inside(canvas: Canvas, style: Style, ring: _Ring, texts: list[str], colors: tuple[Color, ...]) -> None:
    """Values on their slices; those of thin slices outside (their names are then in the legend or further out)."""
    for at, text in enumerate(texts):
        turn = math.radians(ring.spans[at][1] - ring.spans[at][0])
        reach = (1 + ring.hole) / 2 if ring.hole else 0.62 if style.look == "mpl" else 0.66
        fits = turn * ring.radius * reach > style.face.size + 3
        light = sum(colors[at].paint) > 430 or style.look == "mpl"
        face = style.face
        while face.size > 9 and face.width(text) > ring.radius * (1 - ring.hole) * 0.95:
            face = face.resized(face.size - 1)
        if fits:
            canvas.text(ring.beside(at, reach), text, face, (0, 0, 0) if light else (255, 255, 255), "mm")
            continue
        canvas.text(ring.beside(at, 0.86), text, face.resized(max(9, face.size - 2)),
                    (0, 0, 0) if light else (255, 255, 255), "mm")  # fmt: skip


def _seams(canvas: Canvas, style: Style, ring: _Ring) -> None:
    for start, _ in ring.spans:
        angle = math.radians(start)
        end = (ring.center[0] + ring.radius * math.cos(angle), ring.center[1] + ring.radius * math.sin(angle))
        canvas.pen.line((*ring.center, *end), style.background, 2)


def _legend(canvas: Canvas, style: Style, rows: list[str], colors: tuple[Color, ...], area: Area) -> Area:
    """A column at the right, or rows below in narrow pictures."""
    face, box = style.face, max(8, style.face.size - 3)
    width = max(map(face.width, rows)) + box + 6
    while width > area.width - 70 and face.size > 9:
        face = face.resized(face.size - 1)
        width = max(map(face.width, rows)) + box + 6
    below = area.width - width < 0.42 * area.width and area.height > area.width * 0.8
    columns = max(1, int(area.width // (width + 12))) if below else 1
    lines = -(-len(rows) // columns)
    step = min(face.size + 8, (area.height * (0.5 if below else 1.0)) / lines)
    left = area.left if below else area.right - width
    top = area.bottom - lines * step if below else (area.top + area.bottom - lines * step) / 2
    for number, (row, color) in enumerate(zip(rows, colors, strict=True)):
        x = left + (number % columns) * (width + 12)
        y = top + (number // columns + 0.5) * step
        canvas.pen.rectangle((x, y - box / 2, x + box, y + box / 2), color.paint)
        canvas.text((x + box + 6, y), row, face, style.ink, "lm")
    return replace(area, bottom=top - 6) if below else replace(area, right=left - 8)
