"""Line charts with one to three series.

Owns the curve, its markers, and where printed values go. Promises that printed values do not cover one another: where
they would, nothing is printed and values sit at ticks or half ticks. Refuses to know about questions.
"""

from __future__ import annotations

import random
from dataclasses import replace

from recipe.canvas import Canvas, Face, Paint, Point
from recipe.draw_axes import Axes, Plan, close_frame, upright_axes
from recipe.draw_bars import value_text, widest_value
from recipe.draw_frame import draw_inner_legend
from recipe.figures import Figures
from recipe.scale import snap
from recipe.style import Color, Style


def draw_line(rng: random.Random, canvas: Canvas, style: Style, figures: Figures) -> Figures:
    """Curves over categories."""
    colors = style.colors[: len(figures.series)]
    face = style.face.resized(max(10, style.face.size - 1))
    roomy = widest_value(style, figures, face) + 4 < (canvas.width - 80) / len(figures.labels)
    printed = style.printed != "none" and len(figures.series) == 1 and roomy
    hidden = printed and style.look == "plain" and rng.random() < 0.15
    edge = style.look == "mpl" or rng.random() < 0.25
    plan = Plan(colors, hidden, printed, edge_to_edge=edge)
    axes = upright_axes(rng, canvas, style, figures, plan)
    values, decimals = figures.values, figures.decimals
    if not printed:
        values, decimals = snap(rng, axes.scale, values, decimals)
    figures = replace(figures, values=values, decimals=decimals, printed=printed, colors=colors)
    if hidden and figures.axis_title:
        figures = replace(figures, measure="")
    dash = (7, 4) if style.look == "plain" and rng.random() < 0.08 else None
    for row, color in zip(figures.values, colors, strict=True):
        points = [(x, axes.at(value)) for x, value in zip(axes.centers, row, strict=True)]
        canvas.curve(points, color.paint, style.width, dash)
        _markers(canvas, style, points, color)
        if printed:
            _print_values(canvas, style, figures, (points, face), axes)
    close_frame(canvas, style, axes, hidden)
    if len(colors) > 1 and plan.inner(style):
        draw_inner_legend(canvas, style, figures.series, colors, axes.area)
    return figures


def _markers(canvas: Canvas, style: Style, points: list[Point], color: Color) -> None:
    reach = style.width + 1.5
    for x, y in points:
        box = (x - reach, y - reach, x + reach, y + reach)
        if style.marker == "dot":
            canvas.pen.ellipse(box, color.paint)
        elif style.marker == "square":
            canvas.pen.rectangle(box, color.paint)
        elif style.marker == "ring":
            canvas.pen.ellipse(box, style.plot, color.paint, 2)


def _print_values(
    canvas: Canvas, style: Style, figures: Figures, writing: tuple[list[Point], Face], axes: Axes
) -> None:
    """Values above their points, below in valleys."""
    points, face = writing
    ys = [y for _, y in points]
    for at, ((x, y), value) in enumerate(zip(points, figures.values[0], strict=True)):
        text = value_text(style, figures, value)
        valley = style.look != "mpl" and all(y > ys[near] for near in (at - 1, at + 1) if 0 <= near < len(ys))
        below = valley and axes.area.bottom - y > face.size + 10
        half = face.width(text) / 2
        x = min(max(x, half + 3), canvas.width - half - 3)
        place = (x, y + 7) if below else (x, y - 7)
        if style.look != "mpl":
            _halo(canvas, style.plot, place, (face, text), below)
        canvas.text(place, text, face, style.ink, "mt" if below else "mb")


def _halo(canvas: Canvas, paper: Paint, place: Point, writing: tuple[Face, str], below: bool) -> None:
    """Clears the curve from under a printed value."""
    face, text = writing
    half, cap = face.width(text) / 2, face.size * 0.75
    top = place[1] if below else place[1] - cap
    canvas.pen.rectangle((place[0] - half, top, place[0] + half, top + cap), paper)
