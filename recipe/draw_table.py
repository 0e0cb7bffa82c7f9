"""Tables: a header row, a column of names, one to three columns of values.

Owns column widths, rules and stripes. Promises that all text fits (the font shrinks first). Refuses to know about
questions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from recipe.canvas import Canvas, Face
from recipe.draw_bars import value_text
from recipe.draw_frame import draw_title, whole
from recipe.figures import Figures
from recipe.style import Style


@dataclass(frozen=True)
class _Grid:
    """Cell texts, the font, column widths and the height of a row."""

    rows: tuple[tuple[str, ...], ...]
    face: Face
    widths: tuple[float, ...]
    height: float


def draw_table(rng: random.Random, canvas: Canvas, style: Style, figures: Figures) -> Figures:
    """A table of all values under a title."""
    area = draw_title(canvas, style, figures.title, whole(canvas))
    if len(figures.series) == 1 and rng.random() < 0.5:
        figures = replace(figures, series=(figures.axis_title or "Value",))
    if len(figures.series[0]) > 20:
        figures = replace(figures, series=("Value",))
    corner = figures.label_title or rng.choice(("", "Name", "Item", "Category"))
    rows = [(corner, *figures.series)]
    for at, label in enumerate(figures.labels):
        rows.append((label, *(value_text(style, figures, row[at]) for row in figures.values)))
    grid = _fit(rng, style, tuple(rows), area.width, area.height)
    left = area.left if rng.random() < 0.3 else area.left + (area.width - sum(grid.widths)) / 2
    top = area.top + 2
    if rng.random() < 0.5:
        top += max(0.0, (area.bottom - area.top - grid.height * len(rows)) / 2)
    _stripes(rng, canvas, style, grid, (left, top))
    _cells(canvas, style, grid, (left, top), rng.choice("rrml"))
    _rules(rng, canvas, style, grid, (left, top))
    return replace(figures, printed=True, ordered=True, colors=())


def _fit(rng: random.Random, style: Style, rows: tuple[tuple[str, ...], ...], width: float, height: float) -> _Grid:
    face, pad = style.face, rng.randint(12, 30)
    while True:
        widths = [max(face.width(row[column]) for row in rows) + pad for column in range(len(rows[0]))]
        if (sum(widths) <= width and (face.size + 4) * len(rows) <= height) or face.size <= 8:
            break
        face, pad = (face, pad - 4) if pad > 10 else (face.resized(face.size - 1), pad)
    spare = width - sum(widths)
    if spare > 0:
        share = rng.choice((0.0, 0.5, 1.0)) * spare / len(widths)
        widths = [wide + share for wide in widths]
    most = height / len(rows)
    return _Grid(rows, face, tuple(widths), min(most, face.size + rng.randint(6, 16)))


def _stripes(rng: random.Random, canvas: Canvas, style: Style, grid: _Grid, corner: tuple[float, float]) -> None:
    left, top = corner
    right = left + sum(grid.widths)
    shade = tuple(min(255, part + 22) if sum(style.background) < 300 else part - 14 for part in style.background)
    if rng.random() < 0.5:
        canvas.pen.rectangle((left, top, right, top + grid.height - 1), tuple(
            min(255, part + 40) if sum(style.background) < 300 else part - 30 for part in style.background
        ))  # fmt: skip
    if rng.random() < 0.4:
        for row in range(2, len(grid.rows), 2):
            y = top + row * grid.height
            canvas.pen.rectangle((left, y, right, y + grid.height - 1), shade)


def _cells(canvas: Canvas, style: Style, grid: _Grid, corner: tuple[float, float], align: str) -> None:
    for row, cells in enumerate(grid.rows):
        left, y = corner[0], corner[1] + (row + 0.5) * grid.height
        for column, text in enumerate(cells):
            wide, side = grid.widths[column], align if column else "l"
            x = left + {"l": 5, "m": wide / 2, "r": wide - 5}[side]
            if text:
                canvas.text((x, y), text, grid.face, style.ink, side + "m")
            left += wide


def _rules(rng: random.Random, canvas: Canvas, style: Style, grid: _Grid, corner: tuple[float, float]) -> None:
    """No rules, one under the header, one under each row, or a full grid."""
    left, top = corner
    right, bottom = left + sum(grid.widths), top + grid.height * len(grid.rows)
    kind = rng.choice(("header", "rows", "grid", "grid", "none"))
    paint = style.ink if rng.random() < 0.5 or style.look == "gray" else style.faint
    last = {"none": 0, "header": 1, "rows": len(grid.rows), "grid": len(grid.rows)}[kind]
    for row in range(1 if kind in ("header", "rows") else 0, last + 1 if kind != "none" else 0):
        y = top + row * grid.height
        canvas.pen.line((left, y, right, y), paint)
    if kind == "grid":
        x = left
        for wide in (0.0, *grid.widths):
            x += wide
            canvas.pen.line((x, top, x, bottom), paint)
