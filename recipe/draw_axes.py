"""The two kinds of axes: values upwards with categories below, and values to the right with categories at the left.

Owns the margins and the choice between level, broken and turned category labels. Promises that an `Axes` maps values
and categories to pixels as drawn. Refuses to draw the marks.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from recipe.canvas import Canvas
from recipe.draw_frame import (
    Area,
    TickText,
    break_lines,
    choose_scale,
    draw_frame,
    draw_legend,
    draw_title,
    grid_line,
    tick_text,
    whole,
)
from recipe.figures import Figures
from recipe.scale import Scale
from recipe.style import Color, Style


@dataclass(frozen=True)
class Axes:
    """A plot area, its value scale, and the centre of each category along the other direction."""

    area: Area
    scale: Scale
    centers: tuple[float, ...]
    slot: float
    level: bool  # values run to the right

    def at(self, value: float) -> float:
        """The pixel of a value: x when `level`, otherwise y."""
        share = self.scale.share(value)
        return self.area.left + share * self.area.width if self.level else self.area.bottom - share * self.area.height


@dataclass(frozen=True)
class Plan:
    """Choices made before drawing: colours of the legend, whether the value axis is left out, printed values."""

    colors: tuple[Color, ...]
    hidden: bool
    printed: bool
    edge_to_edge: bool = False

    def inner(self, style: Style) -> bool:
        return len(self.colors) > 1 and style.legend == "inside"


def _surroundings(canvas: Canvas, style: Style, figures: Figures, plan: Plan) -> Area:
    """Title and outer legend; returns the room for the axes and their labels."""
    area = draw_title(canvas, style, figures.title, whole(canvas))
    if len(figures.series) > 1 and not plan.inner(style):
        area = draw_legend(canvas, style, figures.series, plan.colors, area)
    return area


def upright_axes(rng: random.Random, canvas: Canvas, style: Style, figures: Figures, plan: Plan) -> Axes:
    """Draws axes with values upwards and returns them."""
    outer = _surroundings(canvas, style, figures, plan)
    size = style.face.size
    scale = choose_scale(rng, style, figures, outer.height * 0.75, plan.inner(style))
    text = tick_text(rng, style, figures, scale, not plan.printed)
    left = outer.left + (0 if plan.hidden else _widest(style, scale, text) + 5 + style.tick)
    if figures.axis_title and not plan.hidden:
        left += size + 4
    right = outer.right - 4
    if style.look == "mpl" and canvas.width >= 448:
        left, right = max(left, canvas.width * 0.125), min(right, canvas.width * 0.9)
    count = len(figures.labels)
    slot = (right - left) / count
    turn, lines, depth = _label_mode(rng, style, figures.labels, (left, slot), outer.height * 0.4)
    bottom = outer.bottom - depth - 4 - style.tick - (size + 5 if figures.label_title else 0)
    area = Area(round(left), round(outer.top + size + 4), round(right), round(bottom))
    margin = 0.05 * area.width if plan.edge_to_edge else slot / 2
    centers = tuple(area.left + margin + (area.width - 2 * margin) * at / max(count - 1, 1) for at in range(count))
    if plan.edge_to_edge:
        turn, lines, depth = (
            (turn, lines, depth) if turn or count < 2 else (0, [[name] for name in figures.labels], size)
        )
    axes = Axes(area, scale, centers, slot, level=False)
    _paint_plot(canvas, style, area)
    if not plan.hidden:
        _upright_ticks(canvas, style, axes, text)
    _label_row(canvas, style, axes, turn, lines)
    _upright_titles(canvas, style, figures, (area, outer.bottom + 3), plan)
    return axes


def _widest(style: Style, scale: Scale, text: TickText) -> float:
    return max(style.face.width(text.show(value)) for value in scale.ticks())


def _paint_plot(canvas: Canvas, style: Style, area: Area) -> None:
    if style.plot != style.background:
        canvas.pen.rectangle((area.left, area.top, area.right, area.bottom), style.plot)


def _upright_ticks(canvas: Canvas, style: Style, axes: Axes, text: TickText) -> None:
    area = axes.area
    if style.grid == "both":
        for x in axes.centers:
            grid_line(canvas, style, (x, area.top, x, area.bottom))
    for value in axes.scale.ticks():
        y = round(axes.at(value))
        if style.grid != "none":
            grid_line(canvas, style, (area.left, y, area.right, y))
        if style.tick:
            canvas.pen.line((area.left - style.tick, y, area.left, y), style.ink)
        canvas.text((area.left - style.tick - 4, y), text.show(value), style.face, style.ink, "rm")


def _label_mode(
    rng: random.Random, style: Style, labels: tuple[str, ...], row: tuple[float, float], most: float
) -> tuple[int, list[list[str]], float]:
    """How category labels fit into a row of (left, slot): degrees turned, lines of each, depth in pixels."""
    left, slot = row
    face, room = style.face, slot - 5
    lines = [[label] for label in labels]
    widest = max(map(face.width, labels))
    upended = style.look == "vega" and rng.random() < 0.6
    if widest <= room and not upended and rng.random() < 0.95:
        return 0, lines, face.size
    broken = [break_lines(label, face, room) for label in labels]
    tallest = max(map(len, broken))
    if tallest <= 2 and not upended and all(face.width(line) <= room for parts in broken for line in parts):
        return 0, broken, tallest * (face.size + 2)
    turn = 90 if upended or slot < face.size * 1.6 else rng.choice((30, 45, 45, 60, 90, 90))
    depth = widest * math.sin(math.radians(turn)) + face.size * 0.7
    start = left + min(slot / 2, 0.05 * slot * len(labels))
    reach = (start + at * slot - face.width(label) * math.cos(math.radians(turn)) for at, label in enumerate(labels))
    if depth > most or min(reach) < 6:
        turn, depth = 90, widest + 4
    return turn, lines, depth


def _label_row(canvas: Canvas, style: Style, axes: Axes, turn: int, lines: list[list[str]]) -> None:
    face, top = style.face, axes.area.bottom + style.tick + 4
    for x, parts in zip(axes.centers, lines, strict=True):
        if style.tick:
            canvas.pen.line((x, axes.area.bottom, x, axes.area.bottom + style.tick), style.ink)
        if not turn:
            for number, part in enumerate(parts):
                half = face.width(part) / 2
                inside = min(max(x, half + 2), canvas.width - half - 2)
                canvas.text((inside, top + number * (face.size + 2)), part, face, style.ink, "mt")
            continue
        drop = 0 if turn == 90 else face.size * 0.35
        canvas.turned((x, top + drop), parts[0], face, style.ink, (turn, "r"))


def _upright_titles(canvas: Canvas, style: Style, figures: Figures, where: tuple[Area, float], plan: Plan) -> None:
    area, floor = where
    if figures.axis_title and not plan.hidden:
        face = style.face
        while face.width(figures.axis_title) > canvas.height - 60 and face.size > 8:
            face = face.resized(face.size - 1)
        half = face.width(figures.axis_title) / 2
        middle = min(max((area.top + area.bottom) / 2, half + 4), canvas.height - half - 4)
        canvas.turned((4 + style.face.size * 0.6, middle), figures.axis_title, face, style.ink, (90, "m"))
    if figures.label_title:
        canvas.text(((area.left + area.right) / 2, floor), figures.label_title, style.face, style.ink, "mb")


def level_axes(rng: random.Random, canvas: Canvas, style: Style, figures: Figures, plan: Plan) -> Axes:
    """Draws axes with values to the right, categories from top to bottom, and returns them."""
    outer = _surroundings(canvas, style, figures, plan)
    size = style.face.size
    scale = choose_scale(rng, style, figures, outer.width * 0.6, plan.inner(style))
    text = tick_text(rng, style, figures, scale, not plan.printed)
    tick_width = _widest(style, scale, text)
    most = outer.width * 0.42
    lines = [_two_lines(style, label, most) for label in figures.labels]
    names = max(style.face.width(part) for parts in lines for part in parts)
    left = outer.left + names + 6 + style.tick + (size + 4 if figures.label_title else 0)
    right = outer.right - (tick_width / 2 + 2 if not plan.hidden else 4)
    if style.look == "mpl" and canvas.width >= 448:
        left, right = max(left, canvas.width * 0.125), min(right, canvas.width * 0.9)
    bottom = outer.bottom - (0 if plan.hidden else size + 5 + style.tick)
    bottom -= size + 5 if figures.axis_title and not plan.hidden else 0
    area = Area(round(left), round(outer.top + 2), round(right), round(bottom))
    slot = area.height / len(lines)
    centers = tuple(area.top + slot * (at + 0.5) for at in range(len(lines)))
    axes = Axes(area, scale, centers, slot, level=True)
    _paint_plot(canvas, style, area)
    if not plan.hidden:
        _level_ticks(canvas, style, axes, text)
    _label_column(canvas, style, axes, lines)
    _level_titles(canvas, style, figures, (area, outer.bottom + 3), plan)
    return axes


def _two_lines(style: Style, label: str, room: float) -> list[str]:
    lines = break_lines(label, style.face, room)
    return lines if len(lines) <= 2 else [label]


def _level_ticks(canvas: Canvas, style: Style, axes: Axes, text: TickText) -> None:
    area, last = axes.area, -1e9
    for value in axes.scale.ticks():
        x, label = round(axes.at(value)), text.show(value)
        if style.grid != "none":
            grid_line(canvas, style, (x, area.top, x, area.bottom))
        half = style.face.width(label) / 2
        if x - half < last + 4:
            continue
        last = x + half
        if style.tick:
            canvas.pen.line((x, area.bottom, x, area.bottom + style.tick), style.ink)
        canvas.text((x, area.bottom + style.tick + 4), label, style.face, style.ink, "mt")


def _label_column(canvas: Canvas, style: Style, axes: Axes, lines: list[list[str]]) -> None:
    face, right = style.face, axes.area.left - style.tick - 5
    for y, parts in zip(axes.centers, lines, strict=True):
        if style.tick:
            canvas.pen.line((axes.area.left - style.tick, y, axes.area.left, y), style.ink)
        step = face.size + 1 if axes.slot >= 2 * face.size + 2 else face.size - 1
        if len(parts) > 1 and axes.slot < 2 * face.size:
            face, step = face.resized(max(8, int(axes.slot / 2) - 1)), axes.slot / 2
        for number, part in enumerate(parts):
            canvas.text((right, y + (number - (len(parts) - 1) / 2) * step), part, face, style.ink, "rm")


def _level_titles(canvas: Canvas, style: Style, figures: Figures, where: tuple[Area, float], plan: Plan) -> None:
    area, floor = where
    if figures.axis_title and not plan.hidden:
        half = style.face.width(figures.axis_title) / 2
        middle = min((area.left + area.right) / 2, canvas.width - half - 4)
        canvas.text((middle, floor), figures.axis_title, style.face, style.ink, "mb")
    if figures.label_title:
        at = (4 + style.face.size * 0.6, (area.top + area.bottom) / 2)
        canvas.turned(at, figures.label_title, style.face, style.ink, (90, "m"))


def close_frame(canvas: Canvas, style: Style, axes: Axes, hidden: bool) -> None:
    """Draws the frame over the marks, as plotting libraries do."""
    if hidden and style.frame == "corner":
        style = replace(style, frame="base")
    if axes.level and style.frame == "base":
        canvas.pen.line((axes.area.left, axes.area.top, axes.area.left, axes.area.bottom), style.ink)
        return
    draw_frame(canvas, style, axes.area)
