"""One call, `make_chart`, from a random generator to a drawn chart and the data behind it.

Owns the `Chart` record and the choice of kind, size, look and data. Promises that the same generator state gives the
same pixels, that every value can be read from the picture (printed, or at a tick, or between two), and that words,
fonts and palettes of the "test" split never appear in "train". Refuses to know anything about questions or models.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, replace

from PIL import Image

from recipe import draw_bars, draw_lines, draw_pie, draw_table
from recipe.canvas import Canvas, Glyph
from recipe.draw_frame import settle_legend
from recipe.figures import Figures, make_figures
from recipe.style import Style, make_style

KINDS = ("bar", "hbar", "line", "pie", "table")
KIND_NAMES = {
    "bar": "bar chart",
    "hbar": "horizontal bar chart",
    "line": "line chart",
    "pie": "pie chart",
    "table": "table",
}
# Width and height, multiples of 32, so that the model's processor resizes nothing.
SIZES = (
    (256, 320), (320, 256), (320, 320), (352, 288), (384, 256), (384, 288), (384, 320), (384, 384), (416, 320),
    (448, 320), (448, 352), (480, 320), (480, 352), (480, 384), (512, 384), (576, 384), (640, 448), (640, 480),
)  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """A picture of data and the data itself; `values[s][i]` belongs to `series[s]` and `labels[i]`.

    `colors` names one colour per label (`colored == "label"`), per series (`"series"`) or for all of the only series
    (`"all"`); it is empty when `colored` is "none". `ordered` is False for pies without a legend, where the first
    category is a matter of taste.
    `glyphs` holds (character, centre x, centre y) in pixels for every character drawn, spaces left out.
    """

    image: Image.Image
    kind: str
    title: str
    labels: tuple[str, ...]
    series: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    decimals: int = 0
    prefix: str = ""
    unit: str = ""
    colors: tuple[str, ...] = ()
    colored: str = "none"
    printed: bool = True
    ordered: bool = True
    measure: str = ""  # what the picture says its values are ("sales"), empty if it does not
    entity: str = ""  # what it says its categories are ("region")
    absent: str = ""  # a label that it does not have
    look: str = "plain"
    glyphs: tuple[Glyph, ...] = ()

    def show(self, value: float) -> str:
        """A value as answers write it: prefix, the decimals printed (unprinted: none to spare), no comma, unit."""
        number = f"{value:.{self.decimals}f}"
        if not self.printed and "." in number:
            number = number.rstrip("0").rstrip(".")
        return f"{self.prefix}{number}{self.unit}"

    @property
    def readable(self) -> bool:
        """Whether values can be read at all: a pie without printed values shows only which slice is larger."""
        return self.printed or self.kind != "pie"


def make_chart(
    rng: random.Random, split: str = "train", kind: str = "", labels: tuple[str, ...] = (), title: str = ""
) -> Chart:
    """A fresh chart of a random (or the given) kind; `split` is "train" or "test".

    `labels` replaces the first of its labels (for charts to compare with another), `title` its title.
    """
    if split not in ("train", "test"):
        raise ValueError(f"no such split: {split!r}")
    kind = kind or rng.choices(KINDS, (28, 19, 21, 18, 14))[0]
    style = make_style(rng, split, kind)
    size = (640, 480) if style.look == "mpl" and rng.random() < 0.75 else rng.choice(SIZES)
    off_grid = split == "train" and rng.random() < 0.05
    drawn = tuple(side + rng.randint(-15, 15) for side in size) if off_grid else size
    figures = make_figures(rng, split, kind, drawn[0])
    if labels and (kind not in ("bar", "line") or max(map(len, labels)) <= 8):
        kept = tuple(name for name in figures.labels if name not in labels)
        mixed = (*labels, *kept)[: len(figures.labels)]
        figures = replace(figures, labels=mixed, absent=figures.absent if figures.absent not in mixed else "")
    if title:
        figures = replace(figures, title=title, measure="", entity="")
    canvas, figures = draw(rng, drawn, style, figures)
    image, glyphs = _finish(rng, canvas, size, split)
    return _record(figures, style, image, glyphs)


def draw(rng: random.Random, size: tuple[int, int], style: Style, figures: Figures) -> tuple[Canvas, Figures]:
    """Draws the figures and returns them as drawn: values may have been moved to readable places."""
    style = settle_legend(size[1], style, figures)
    canvas = Canvas(size, style.background)
    painter = {
        "bar": draw_bars.draw_bar,
        "hbar": draw_bars.draw_hbar,
        "line": draw_lines.draw_line,
        "pie": draw_pie.draw_pie,
        "table": draw_table.draw_table,
    }[figures.kind]
    return canvas, painter(rng, canvas, style, figures)


def _finish(rng: random.Random, canvas: Canvas, size: tuple[int, int], split: str) -> tuple[Image.Image, tuple]:
    """Resizes pictures drawn off the grid and sends a few through JPEG, as real ones come."""
    image, glyphs = canvas.image, canvas.glyphs
    if image.size != size:
        scale_x, scale_y = size[0] / image.width, size[1] / image.height
        image = image.resize(size, Image.Resampling.BICUBIC)
        glyphs = [(char, x * scale_x, y * scale_y) for char, x, y in glyphs]
    if split == "train" and rng.random() < 0.03:
        packed = io.BytesIO()
        image.save(packed, "JPEG", quality=rng.randint(70, 95))
        image = Image.open(packed).convert("RGB")
    return image, tuple(glyphs)


def _record(figures: Figures, style: Style, image: Image.Image, glyphs: tuple) -> Chart:
    chart = Chart(
        image=image,
        kind=figures.kind,
        title=figures.title,
        labels=figures.labels,
        series=figures.series,
        values=figures.values,
        decimals=figures.decimals,
        prefix=figures.prefix,
        unit=figures.unit,
        printed=figures.printed,
        ordered=figures.ordered,
        measure=figures.measure,
        entity=figures.entity,
        absent=figures.absent,
        look=style.look,
        glyphs=glyphs,
    )
    names = tuple(color.name for color in figures.colors)
    if len(set(names)) < len(names) or not names or figures.kind == "table":
        return chart
    several = "series" if len(figures.series) > 1 else "label"
    return replace(chart, colors=names, colored="all" if len(names) == 1 else several)
