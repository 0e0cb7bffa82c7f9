"""Titles, legends, axes: what surrounds bars and lines.

Owns the layout of a picture: `Area` shrinks as the title, the legend and the labels take their room. Promises that no
text leaves the picture or covers other text. Refuses to know how marks are drawn inside the area.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from recipe.canvas import Canvas, Face
from recipe.figures import Figures
from recipe.scale import Scale, library_scale, show_tick, tidy_scale
from recipe.style import Color, Style

EDGE = 8  # pixels kept free at the border


@dataclass(frozen=True)
class Area:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


def whole(canvas: Canvas) -> Area:
    return Area(EDGE, EDGE, canvas.width - EDGE, canvas.height - EDGE)


def break_lines(text: str, face: Face, room: float) -> list[str]:
    """Words filled into lines of at most `room` pixels (a longer word gets its own line)."""
    lines: list[str] = []
    for word in text.split():
        if lines and face.width(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def draw_title(canvas: Canvas, style: Style, title: str, area: Area) -> Area:
    """Writes the title in one to three lines at the top; returns what is left."""
    if not title:
        return area
    face = style.title_face
    lines = break_lines(title, face, area.width)
    while (len(lines) > 2 or max(map(face.width, lines)) > area.width) and face.size > 9:
        face = face.resized(face.size - 1)
        lines = break_lines(title, face, area.width)
    top = area.top
    for line in lines:
        x = area.left if style.title_at == "left" else (area.left + area.right) / 2
        canvas.text((x, top + 2), line, face, style.ink, "lt" if style.title_at == "left" else "mt")
        top += face.size + 3
    return replace(area, top=top + 4)


def draw_legend(canvas: Canvas, style: Style, names: tuple[str, ...], colors: tuple[Color, ...], area: Area) -> Area:
    """Draws a legend right, on top or at the bottom; returns what is left."""
    face, box = style.face, max(8, style.face.size - 3)
    widths = [box + 5 + face.width(name) for name in names]
    row = sum(widths) + 14 * (len(names) - 1)
    if style.legend in ("top", "bottom") and row <= area.width:
        at = area.top + face.size / 2 if style.legend == "top" else area.bottom - face.size / 2
        x = area.left + (area.width - row) / 2
        for name, color, width in zip(names, colors, widths, strict=True):
            _entry(canvas, style, (x, at), name, color)
            x += width + 14
        taken = face.size + 8
        return replace(area, top=area.top + taken) if style.legend == "top" else replace(
            area, bottom=area.bottom - taken
        )  # fmt: skip
    step = min(face.size + 8, area.height / len(names))
    left = area.right - max(widths)
    at = area.top + face.size if style.look in ("vega", "mpl") else area.top + (area.height - step * len(names)) / 2
    for number, (name, color) in enumerate(zip(names, colors, strict=True)):
        _entry(canvas, style, (left, at + step * (number + 0.5)), name, color)
    return replace(area, right=left - 12)


def settle_legend(height: int, style: Style, figures: Figures) -> Style:
    """Moves a legend out of the axes where it would cover marks: level bars, and pictures of small height."""
    needed = (style.face.size + 5) * len(figures.series) + 24
    if style.legend == "inside" and (figures.kind == "hbar" or needed > 0.24 * (height - 110)):
        return replace(style, legend="right")
    return style


def draw_inner_legend(
    canvas: Canvas, style: Style, names: tuple[str, ...], colors: tuple[Color, ...], area: Area
) -> None:
    """A framed legend in the upper right corner of the axes, where room was kept."""
    face, box = style.face, max(8, style.face.size - 3)
    width = max(box + 5 + face.width(name) for name in names) + 12
    left, top, step = area.right - width - 6, area.top + 6, face.size + 5
    frame = (left, top, area.right - 6, top + step * len(names) + 6)
    canvas.pen.rounded_rectangle(frame, 3, style.background, (204, 204, 204))
    for number, (name, color) in enumerate(zip(names, colors, strict=True)):
        _entry(canvas, style, (left + 6, top + 3 + step * (number + 0.5)), name, color)


def _entry(canvas: Canvas, style: Style, at: tuple[float, float], name: str, color: Color) -> None:
    box = max(8, style.face.size - 3)
    canvas.pen.rectangle((at[0], at[1] - box / 2, at[0] + box, at[1] + box / 2), color.paint)
    canvas.text((at[0] + box + 5, at[1]), name, style.face, style.ink, "lm")


def choose_scale(rng: random.Random, style: Style, figures: Figures, length: float, inner: bool) -> Scale:
    """An axis for the figures over `length` pixels, with headroom when a legend lies inside."""
    low = min(min(row) for row in figures.values)
    high = max(max(row) for row in figures.values)
    line = figures.kind == "line"
    if inner:
        legend = (style.face.size + 5) * len(figures.series) + 24
        base = low if line else 0.0
        high = base + (high - base) / (1 - min(0.6, max(0.2, legend / length)))
    if style.look == "mpl":
        return library_scale(low, high, length, style.face.size, zero=not line)
    want = max(3, min(9, int(length / rng.uniform(28, 60))))
    scale = tidy_scale(rng, high, want, figures.decimals)
    if line and low > 0.35 * high and rng.random() < 0.4 and low > scale.step * 1.5:
        base = tidy_scale(rng, (high - low) * 1.1, want, figures.decimals)
        floor = (low // base.step) * base.step
        return Scale(floor, floor + (-(-(high - floor) // base.step)) * base.step, base.step)
    return scale


@dataclass(frozen=True)
class TickText:
    """How tick labels are written."""

    decimals: int
    comma: bool
    thousands: bool
    prefix: str
    unit: str

    def show(self, value: float) -> str:
        return self.prefix + show_tick(value, self.decimals, self.comma, self.thousands) + self.unit


def tick_text(rng: random.Random, style: Style, figures: Figures, scale: Scale, bare: bool) -> TickText:
    """Tick labels carry the unit when no printed value does (`bare`), otherwise half the time."""
    unit = bare or rng.random() < 0.5
    thousands = scale.high >= 4000 and scale.step >= 500 and not figures.unit and rng.random() < 0.06
    return TickText(
        scale.decimals(),
        style.comma,
        thousands and style.look != "mpl",
        figures.prefix if unit else "",
        figures.unit if unit else "",
    )


def draw_frame(canvas: Canvas, style: Style, area: Area) -> None:
    """Draws the lines around the plot: a box, a corner, a base line or nothing."""
    box, ink = (area.left, area.top, area.right, area.bottom), style.faint if style.look == "vega" else style.ink
    if style.frame == "box":
        canvas.pen.rectangle(box, None, ink)
    if style.frame in ("base", "corner"):
        canvas.pen.line((area.left, area.bottom, area.right, area.bottom), ink)
    if style.frame == "corner":
        canvas.pen.line((area.left, area.top, area.left, area.bottom), ink)


def grid_line(canvas: Canvas, style: Style, ends: tuple[float, float, float, float]) -> None:
    """One grid line, level or upright, whole or dashed."""
    if not style.dashed:
        canvas.pen.line(ends, style.faint)
        return
    x0, y0, x1, y1 = ends
    steps = int(max(x1 - x0, y1 - y0) // 8)
    for number in range(steps):
        part, rest = number / steps, (number + 0.5) / steps
        x, y = x1 - x0, y1 - y0
        canvas.pen.line((x0 + x * part, y0 + y * part, x0 + x * rest, y0 + y * rest), style.faint)
