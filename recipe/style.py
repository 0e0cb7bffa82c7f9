"""Looks: palettes, fonts, grids, legends, and where printed values go.

Owns the `Style` record and its random choice, including imitations of two plotting libraries' default looks. Promises
that colour names are those a person would say, that fonts and palettes of the "test" split are never used in "train",
and that about one picture in twelve is dark. Refuses to know the data.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from recipe.canvas import Face, Paint


@dataclass(frozen=True)
class Color:
    """A paint and the name a person gives it."""

    name: str
    paint: Paint


@dataclass(frozen=True)
class Style:
    """Everything about a picture's look that does not depend on its data. Sizes in pixels."""

    look: str  # plain, mpl, vega, gray
    face: Face
    title_face: Face
    background: Paint
    plot: Paint
    ink: Paint
    faint: Paint
    colors: tuple[Color, ...]
    grid: str  # none, across, both
    dashed: bool
    frame: str  # none, base, corner, box
    tick: int  # length of tick marks
    title_at: str  # left, middle
    printed: str  # none, outside, inside
    varied: bool  # every bar its own colour
    comma: bool
    legend: str  # right, top, bottom, inside
    fill: float  # share of the slot that bars take
    width: float  # of lines
    marker: str  # none, dot, square, ring


TRAIN_FAMILIES = ("dejavu-sans", "dejavu-sans", "liberation-sans", "liberation-sans", "open-sans", "lato", "roboto",
                  "inter", "dejavu-serif", "liberation-serif", "dejavu-mono")  # fmt: skip
TEST_FAMILIES = ("carlito", "cantarell")
OPENTYPE = ("inter", "cantarell")

# Shades by name: the last of each is kept for the test split.
SHADES: dict[str, tuple[Paint, ...]] = {
    "blue": ((66, 133, 244), (55, 126, 184), (33, 102, 172), (78, 121, 167), (0, 92, 200), (46, 110, 190)),
    "orange": ((255, 140, 0), (242, 142, 43), (253, 126, 20), (240, 120, 30), (249, 132, 20)),
    "green": ((77, 175, 74), (52, 168, 83), (89, 161, 79), (34, 139, 34), (0, 150, 70), (60, 155, 65)),
    "red": ((228, 26, 28), (220, 50, 47), (234, 67, 53), (200, 30, 45), (225, 87, 89), (212, 40, 50)),
    "purple": ((152, 78, 163), (128, 62, 160), (111, 66, 193), (142, 68, 173), (135, 70, 175)),
    "brown": ((140, 86, 75), (156, 102, 60), (121, 85, 72), (139, 90, 43), (130, 88, 62)),
    "pink": ((247, 129, 191), (240, 98, 146), (255, 130, 170), (232, 110, 180), (244, 118, 175)),
    "gray": ((127, 127, 127), (150, 150, 150), (120, 128, 136), (138, 140, 142)),
    "yellow": ((251, 188, 4), (237, 201, 72), (255, 214, 10), (241, 196, 15), (246, 204, 36)),
    "teal": ((0, 128, 128), (0, 150, 136), (38, 148, 148), (20, 140, 138)),
    "cyan": ((0, 188, 212), (0, 200, 225), (86, 200, 230), (30, 194, 218)),
}
# First colours of two libraries' default cycles, in their order.
MPL_CYCLE = (
    Color("blue", (31, 119, 180)), Color("orange", (255, 127, 14)), Color("green", (44, 160, 44)),
    Color("red", (214, 39, 40)), Color("purple", (148, 103, 189)), Color("brown", (140, 86, 75)),
    Color("pink", (227, 119, 194)), Color("gray", (127, 127, 127)), Color("olive", (188, 189, 34)),
    Color("cyan", (23, 190, 207)),
)  # fmt: skip
VEGA_CYCLE = (
    Color("blue", (76, 120, 168)), Color("orange", (245, 133, 24)), Color("red", (228, 87, 86)),
    Color("teal", (114, 183, 178)), Color("green", (84, 162, 75)), Color("yellow", (238, 202, 59)),
    Color("purple", (178, 121, 162)), Color("pink", (255, 157, 166)), Color("brown", (157, 117, 93)),
    Color("gray", (186, 176, 172)),
)  # fmt: skip

PAPERS: tuple[Paint, ...] = ((255, 255, 255),) * 6 + (
    (250, 250, 248),
    (245, 247, 250),
    (255, 252, 240),
    (248, 248, 248),
)
NIGHTS: tuple[Paint, ...] = ((24, 26, 32), (33, 33, 36), (17, 24, 39), (40, 44, 52), (0, 0, 0))


def make_style(rng: random.Random, split: str, kind: str) -> Style:
    """A random look for one picture of the given kind."""
    roll = rng.random()
    if kind != "table" and roll < 0.15:
        return _mpl_style(rng, kind)
    if kind in ("bar", "hbar", "line") and roll < 0.21:
        return _vega_style(rng)
    return _plain_style(rng, split)


def face_of(family: str, size: int, bold: bool = False) -> Face:
    """A bundled family at a size."""
    suffix = ".otf" if family in OPENTYPE else ".ttf"
    return Face(family + ("-bold" if bold else "") + suffix, size)


def _plain_style(rng: random.Random, split: str) -> Style:
    family = rng.choice(TEST_FAMILIES if split == "test" else TRAIN_FAMILIES)
    dark = rng.random() < 0.085
    size = rng.choice((11, 12, 12, 13, 13, 14, 15, 16)) + (1 if family == "carlito" else 0)
    paper = rng.choice(NIGHTS if dark else PAPERS)
    gray = not dark and rng.random() < 0.05
    level = rng.randint(210, 245) if dark else rng.randint(10, 80)
    faint = rng.randint(60, 90) if dark else rng.randint(200, 232)
    return Style(
        look="gray" if gray else "plain",
        face=face_of(family, size, rng.random() < 0.08),
        title_face=face_of(family, size + rng.choice((1, 2, 3, 4, 6)), rng.random() < 0.5),
        background=paper,
        plot=(234, 234, 242) if gray else paper,
        ink=(level, level, level + 8 if not dark else level),
        faint=(255, 255, 255) if gray else (faint, faint, faint),
        colors=_palette(rng, split),
        grid="both" if gray else rng.choices(("none", "across", "both"), (35, 55, 10))[0],
        dashed=rng.random() < 0.25,
        frame="none" if gray else rng.choices(("none", "base", "corner", "box"), (15, 30, 35, 20))[0],
        tick=rng.choice((0, 0, 3, 4, 5)),
        title_at="left" if rng.random() < 0.3 else "middle",
        printed=rng.choices(("none", "outside", "inside"), (30, 52, 18))[0],
        varied=rng.random() < 0.45,
        comma=rng.random() < 0.35,
        legend=rng.choice(("right", "top", "bottom", "right")),
        fill=rng.uniform(0.45, 0.9),
        width=rng.choice((1.5, 2, 2, 2.5, 3)),
        marker=rng.choice(("none", "dot", "dot", "dot", "square", "ring")),
    )


def _mpl_style(rng: random.Random, kind: str) -> Style:
    """Box around the axes, tick marks outside, DejaVu Sans at 10 points and 100 dots per inch."""
    size = 14 if rng.random() < 0.8 else rng.choice((12, 13, 15, 16))
    return Style(
        look="mpl",
        face=face_of("dejavu-sans", size),
        title_face=face_of("dejavu-sans", size + 3),
        background=(255, 255, 255),
        plot=(255, 255, 255),
        ink=(0, 0, 0),
        faint=(176, 176, 176),
        colors=MPL_CYCLE,
        grid="both" if rng.random() < 0.15 else "none",
        dashed=False,
        frame="box",
        tick=5,
        title_at="middle",
        printed="outside" if rng.random() < 0.45 else "none",
        varied=rng.random() < 0.12,
        comma=False,
        legend="inside",
        fill=0.8,
        width=2,
        marker=rng.choice(("none", "dot", "dot")),
    )


def _vega_style(rng: random.Random) -> Style:
    """Light grey grid and frame, small sans-serif text, bold titles."""
    size = rng.choice((10, 11, 12, 13))
    return Style(
        look="vega",
        face=face_of("liberation-sans", size),
        title_face=face_of("liberation-sans", size + 3, bold=True),
        background=(255, 255, 255),
        plot=(255, 255, 255),
        ink=(0, 0, 0),
        faint=(221, 221, 221),
        colors=VEGA_CYCLE,
        grid="across",
        dashed=False,
        frame="box",
        tick=5,
        title_at="middle",
        printed="outside" if rng.random() < 0.3 else "none",
        varied=rng.random() < 0.2,
        comma=True,
        legend="right",
        fill=rng.choice((0.9, 0.8)),
        width=2,
        marker="dot" if rng.random() < 0.4 else "none",
    )


def _palette(rng: random.Random, split: str) -> tuple[Color, ...]:
    """Ten differently named colours in random order; now and then a library's cycle."""
    if split == "train" and rng.random() < 0.2:
        return rng.choice((MPL_CYCLE, VEGA_CYCLE))
    names = list(SHADES)
    names.remove(rng.choice(("cyan", "teal")))
    rng.shuffle(names)
    if split == "test":
        return tuple(Color(name, SHADES[name][-1]) for name in names)
    return tuple(Color(name, rng.choice(SHADES[name][:-1])) for name in names)
