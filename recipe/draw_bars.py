"""Bars, upright and level, single and grouped.

Owns whether values can be printed at the bars, and moves them to readable places if not. Promises that the returned
figures are what the picture shows. Refuses to know about questions.
"""

from __future__ import annotations

import random
from dataclasses import replace

from recipe.canvas import Canvas, Face, Paint
from recipe.draw_axes import Axes, Plan, close_frame, level_axes, upright_axes
from recipe.draw_frame import draw_inner_legend
from recipe.figures import Figures
from recipe.scale import snap
from recipe.style import Color, Style


def value_text(style: Style, figures: Figures, value: float) -> str:
    """A value as printed in the picture."""
    number = f"{value:,.{figures.decimals}f}" if style.comma else f"{value:.{figures.decimals}f}"
    return f"{figures.prefix}{number}{figures.unit}"


def widest_value(style: Style, figures: Figures, face: Face) -> float:
    return max(face.width(value_text(style, figures, value)) for row in figures.values for value in row)


def bar_colors(style: Style, figures: Figures) -> tuple[Color, ...]:
    """One colour per series, per label when varied, or one for all."""
    if len(figures.series) > 1:
        return style.colors[: len(figures.series)]
    if style.varied and len(figures.labels) <= len(style.colors):
        return style.colors[: len(figures.labels)]
    return style.colors[:1]


def draw_bar(rng: random.Random, canvas: Canvas, style: Style, figures: Figures) -> Figures:
    """Upright bars."""
    count, groups = len(figures.labels), len(figures.series)
    room = (canvas.width - 70) / count * (style.fill if groups > 1 else 1.0) / groups - 3
    face = _fitting(style, figures, room)
    printed = style.printed != "none" and face is not None
    return _draw(rng, canvas, style, figures, (face if printed else None, False))


def draw_hbar(rng: random.Random, canvas: Canvas, style: Style, figures: Figures) -> Figures:
    """Level bars, the first category on top."""
    bars = len(figures.labels) * len(figures.series)
    face = style.face
    room = (canvas.height - 90) / bars * (style.fill if len(figures.series) > 1 else 1.0)
    while face.size > 9 and face.size > room:
        face = face.resized(face.size - 1)
    printed = style.printed != "none" and face.size <= room
    return _draw(rng, canvas, style, figures, (face if printed else None, True))


def _fitting(style: Style, figures: Figures, room: float) -> Face | None:
    """The text size at which every value fits over its bar, if there is one."""
    face = style.face
    while widest_value(style, figures, face) > room:
        if face.size <= 9:
            return None
        face = face.resized(face.size - 1)
    return face


def _draw(
    rng: random.Random, canvas: Canvas, style: Style, figures: Figures, printing: tuple[Face | None, bool]
) -> Figures:
    face, level = printing
    colors = bar_colors(style, figures)
    hidden = face is not None and style.look == "plain" and rng.random() < 0.22
    legend = colors if len(figures.series) > 1 else ()
    plan = Plan(legend, hidden, face is not None)
    axes = (level_axes if level else upright_axes)(rng, canvas, style, figures, plan)
    values, decimals = figures.values, figures.decimals
    if face is None:
        values, decimals = snap(rng, axes.scale, values, decimals)
    figures = replace(figures, values=values, decimals=decimals, printed=face is not None, colors=colors)
    if hidden and figures.axis_title:
        figures = replace(figures, measure="")
    edge = (0, 0, 0) if style.look == "plain" and rng.random() < 0.1 else None
    for row, numbers in enumerate(figures.values):
        for at, value in enumerate(numbers):
            color = colors[row if len(figures.series) > 1 else at % len(colors)]
            box = _box(axes, style, len(figures.series), (row, at), value)
            if box[2] - box[0] >= 1 and box[3] - box[1] >= 1:
                canvas.pen.rectangle(box, color.paint, edge)
            if face is not None:
                _print_value(canvas, style, (face, value_text(style, figures, value)), (box, level), color.paint)
    close_frame(canvas, style, axes, hidden)
    if plan.inner(style):
        draw_inner_legend(canvas, style, figures.series, colors, axes.area)
    return figures


def _box(
    axes: Axes, style: Style, groups: int, place: tuple[int, int], value: float
) -> tuple[float, float, float, float]:
    """The rectangle of one bar."""
    row, at = place
    thick = axes.slot * style.fill / groups
    start = axes.centers[at] + (row - groups / 2) * thick
    first, last = round(start), round(start + thick) - 1
    if axes.level:
        return axes.area.left, first, axes.at(value), last
    return first, axes.at(value), last, axes.area.bottom


def _print_value(
    canvas: Canvas,
    style: Style,
    writing: tuple[Face, str],
    where: tuple[tuple[float, float, float, float], bool],
    paint: Paint,
) -> None:
    """A value at the end of its bar: inside when asked for and there is room, otherwise beyond."""
    (face, text), ((left, top, right, bottom), level) = writing, where
    width = face.width(text)
    fits = width + 8 <= right - left if level else face.size + 4 <= bottom - top and width + 2 <= right - left
    gap = 1 if style.look == "mpl" else 5
    beyond = right + gap + width > canvas.width - 2 if level else top - 4 - face.size < 2
    if (style.printed == "inside" and fits) or (beyond and fits):
        ink = (255, 255, 255) if sum(paint) < 430 else (0, 0, 0)
        at = (right - 4, (top + bottom) / 2) if level else ((left + right) / 2, top + 5)
        canvas.text(at, text, face, ink, "rm" if level else "mt")
        return
    at = (min(right + gap, canvas.width - 3 - width), (top + bottom) / 2) if level else ((left + right) / 2, top - 4)
    canvas.text(at, text, face, style.ink, "lm" if level else "mb")
