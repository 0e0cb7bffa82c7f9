"""A picture under construction, which remembers where it put each character.

Owns fonts and text placement. Promises that `glyphs` lists the centre of every visible character in image pixels, also
for turned text, and that curves and slices are smoothed the way drawing libraries smooth them. Refuses to know what a
chart is. Text is placed by capital height, so that "middle" means the middle of the digits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

Glyph = tuple[str, float, float]
Point = tuple[float, float]
Paint = tuple[int, int, int]

FONT_FOLDER = Path(__file__).parent / "fonts"
CAP_HEIGHT = 0.72  # of the font size, near enough for every bundled font
SMOOTH = 2  # curves are drawn this many times larger and reduced


@dataclass(frozen=True)
class Face:
    """A bundled font file at one size in pixels."""

    file: str
    size: int

    def width(self, text: str) -> float:
        """Advance width of a line of text in pixels."""
        return sum(_advance(self, char) for char in text)

    def resized(self, size: int) -> Face:
        return Face(self.file, size)


@cache
def _font(face: Face) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONT_FOLDER / face.file), face.size, layout_engine=ImageFont.Layout.BASIC)


@cache
def _advance(face: Face, char: str) -> float:
    return _font(face).getlength(char)


class Canvas:
    """An RGB picture with a pen, and the list of characters written so far."""

    def __init__(self, size: tuple[int, int], background: Paint) -> None:
        self.image = Image.new("RGB", size, background)
        self.pen = ImageDraw.Draw(self.image)
        self.glyphs: list[Glyph] = []

    @property
    def width(self) -> int:
        return self.image.width

    @property
    def height(self) -> int:
        return self.image.height

    def text(self, at: Point, text: str, face: Face, paint: Paint, anchor: str = "lm") -> None:
        """Writes one line; `anchor` is l, m or r followed by t, m or b (by capital height)."""
        left = at[0] - face.width(text) * {"l": 0.0, "m": 0.5, "r": 1.0}[anchor[0]]
        cap = CAP_HEIGHT * face.size
        base = at[1] + cap * {"t": 1.0, "m": 0.5, "b": 0.0}[anchor[1]]
        left, base = round(left), round(base)
        self.pen.text((left, base), text, paint, _font(face), anchor="ls")
        for char in text:
            step = _advance(face, char)
            if char != " ":
                self.glyphs.append((char, left + step / 2, base - cap / 2))
            left += step

    def turned(self, at: Point, text: str, face: Face, paint: Paint, turn: tuple[int, str]) -> None:
        """Writes one line turned counter-clockwise; `turn` = (degrees, which end sits at `at`: l, m or r)."""
        degrees, end = turn
        length, cap = face.width(text), CAP_HEIGHT * face.size
        radius = math.ceil(length + face.size) + 2
        along = length * {"l": 0.0, "m": 0.5, "r": 1.0}[end]
        mask = Image.new("L", (2 * radius, 2 * radius))
        ImageDraw.Draw(mask).text((radius - along, radius + cap / 2), text, 255, _font(face), anchor="ls")
        mask = mask.transpose(Image.Transpose.ROTATE_90) if degrees == 90 else mask.rotate(
            degrees, Image.Resampling.BICUBIC
        )  # fmt: skip
        box = mask.getbbox() or (0, 0, 1, 1)
        corner = (round(at[0]) - radius + box[0], round(at[1]) - radius + box[1])
        self.image.paste(paint, (*corner, corner[0] + box[2] - box[0], corner[1] + box[3] - box[1]), mask.crop(box))
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        offset = -along
        for char in text:
            step = _advance(face, char)
            if char != " ":
                middle = offset + step / 2
                self.glyphs.append((char, at[0] + middle * cos, at[1] - middle * sin))
            offset += step

    def curve(self, points: list[Point], paint: Paint, width: float, dash: tuple[int, int] | None = None) -> None:
        """A smoothed line through the points."""
        margin = math.ceil(width) + 2
        left, top = min(x for x, _ in points) - margin, min(y for _, y in points) - margin
        right, bottom = max(x for x, _ in points) + margin, max(y for _, y in points) + margin
        left, top = math.floor(left), math.floor(top)
        size = (math.ceil(right - left), math.ceil(bottom - top))
        mask = Image.new("L", (size[0] * SMOOTH, size[1] * SMOOTH))
        pen = ImageDraw.Draw(mask)
        scaled = [((x - left) * SMOOTH, (y - top) * SMOOTH) for x, y in points]
        for piece in _dashes(scaled, dash) if dash else [scaled]:
            pen.line(piece, 255, round(width * SMOOTH), joint="curve")
        mask = mask.reduce(SMOOTH)
        self.image.paste(paint, (left, top, left + mask.width, top + mask.height), mask)

    def slices(self, center: Point, radius: float, pieces: list[tuple[float, float, Paint]], hole: float = 0) -> None:
        """Smoothed pie slices (start, end in degrees clockwise from 3 o'clock); `hole` is a share of the radius."""
        side = math.ceil(radius) * 2 + 2
        left, top = round(center[0] - side / 2), round(center[1] - side / 2)
        box = (left, top, left + side, top + side)
        part = self.image.crop(box).resize((side * SMOOTH, side * SMOOTH), Image.Resampling.NEAREST)
        back = self.image.getpixel((max(left, 0), max(top, 0)))
        pen, middle, reach = ImageDraw.Draw(part), side * SMOOTH / 2, radius * SMOOTH
        for start, end, paint in pieces:
            pen.pieslice((middle - reach, middle - reach, middle + reach, middle + reach), start, end, paint)
        if hole:
            reach *= hole
            pen.ellipse((middle - reach, middle - reach, middle + reach, middle + reach), back)
        self.image.paste(part.reduce(SMOOTH), box[:2])


def _dashes(points: list[Point], dash: tuple[int, int]) -> list[list[Point]]:
    """Cuts a line into dashes of `dash` = (on, off) pixels of the final picture."""
    pieces: list[list[Point]] = []
    on, off = dash[0] * SMOOTH, dash[1] * SMOOTH
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0) or 1.0
        at = 0.0
        while at < length:
            end = min(at + on, length)
            ends = [(x0 + (x1 - x0) * part / length, y0 + (y1 - y0) * part / length) for part in (at, end)]
            pieces.append(ends)
            at = end + off
    return pieces
