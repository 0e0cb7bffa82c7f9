"""Fixed-size packs of DeepSeek V4 conversations: laid side by side until the rows or the patches are full.

Owns the pack's layout in one flat buffer and the filling rule. Promises that pack `n` of a seed is the same on every
machine and every run, that a conversation begins at a multiple of every compression rate and crosses no row, and that
padding never touches a real token. Knows nothing about processes or GPUs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foveate.core.images import Kind
from recipe.deepseek_encode import PER_PATCH, BlockEncoder, BlockSegment, Picture, patch_places, square_patches
from recipe.deepseek_model import SightPack
from recipe.deepseek_ops import Spans
from recipe.deepseek_shapes import BLANKS, SightShape
from recipe.packs import Arrays, Draw, Filler, field_bytes, fill, view_fields

SENTINELS = (Kind.START, Kind.PAD, Kind.NEWLINE, Kind.END)  # the order of the learned vectors behind the image rows


@dataclass(frozen=True)
class BlockPackShape:
    """Sizes of a pack. values: numbers in a patch; square: patches in a cell; align: where conversations may begin."""

    rows: int = 20
    row: int = 1536
    patches: int = 57344
    labels: int = 10240
    longest_image: int = 1728  # patches of the largest chart
    images: int = 320
    values: int = 588
    square: int = 4
    align: int = 32

    @property
    def tokens(self) -> int:
        """Tokens in a pack, padding included."""
        return self.rows * self.row

    @property
    def cells(self) -> int:
        """Image rows in a pack: patches may leave cells at an edge half empty."""
        return self.patches // self.square * 9 // 8

    def fields(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """Name to (shape, type) of every array."""
        grid = (self.rows, self.row)
        return {
            "patches": ((self.patches, self.values), np.uint8),
            "places": ((self.patches, 2), np.int16),
            "image_edges": ((self.images + 1,), np.int32),
            "characters": ((self.patches, PER_PATCH), np.int8),
            "squares": ((self.cells, self.square), np.int32),
            "ids": (grid, np.int16),
            "source": ((self.tokens,), np.int32),
            "image": (grid, np.uint8),
            "age": (grid, np.int16),
            "start": (grid, np.int16),
            "first": (grid, np.int16),
            "last": (grid, np.int16),
            "label_at": ((self.labels,), np.int32),
            "label": ((self.labels,), np.int32),
            "weight": ((self.labels,), np.float32),
            "answer": ((self.labels,), np.int32),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of one pack's buffer."""
        return field_bytes(self.fields())

    def view(self, buffer: Any, offset: int = 0) -> Arrays:
        """The arrays of a pack inside `buffer`."""
        return view_fields(self.fields(), buffer, offset)


def block_pack_shape(shape: SightShape, **sizes: int) -> BlockPackShape:
    """The packs that fit a model."""
    vision = shape.vision
    return BlockPackShape(values=vision.patch_values, square=vision.cell**2, align=shape.text.align, **sizes)


class BlockFiller(Filler):
    """Fills one pack's arrays from conversations."""

    def __init__(self, shape: BlockPackShape, encoder: BlockEncoder, out: Arrays) -> None:
        super().__init__(shape, out)  # `used` is filled up to where the next conversation may begin
        self.encoder, self.cell_at = encoder, 0
        for name in ("ids", "image", "age", "start", "weight", "label", "places", "characters"):
            out[name][:] = 0
        out["first"][:] = out["last"][:] = np.arange(shape.row)

    def add(self, conversation: Any, least: int = 1) -> bool:
        """Place a conversation, with as many turns as fit; False where fewer than `least` turns would."""
        sizes = [chart.image.size for chart in conversation.charts]
        patches = sum(self.encoder.patch_len(size) for size in sizes)
        images, shape = sum(self.encoder.image_len(size) + 3 for size in sizes), self.shape
        if self._lacks_images(patches, len(sizes)) or images > shape.cells - self.cell_at:
            return False
        row = self._row(images, len(conversation.turns))
        if row is None:
            return False
        segment = self.encoder.segment(conversation, shape.row - self.used[row])
        if not self._fits(segment, min(least, len(conversation.turns))):
            return False
        self._place(segment, row)
        return True

    def _place(self, segment: BlockSegment, row: int) -> None:
        start, length = self.used[row], len(segment.ids)
        filled = min(-(-length // self.shape.align) * self.shape.align, self.shape.row - start)
        self.out["ids"][row, start : start + length] = segment.ids
        self.out["age"][row, start : start + filled] = np.arange(filled)
        self.out["start"][row, start : start + filled] = start
        kinds = np.array(segment.kinds)
        self.out["image"][row, start : start + length] = kinds >= 0
        source = self.out["source"][row * self.shape.row + start :][:length]
        for number, kind in enumerate(SENTINELS):
            source[kinds == kind] = self.shape.tokens + self.shape.cells + number
        for picture in segment.pictures:
            self._picture(picture, row, start, kinds, source)
        for first, past, kind in segment.answers:
            self._label(row * self.shape.row + start + first, segment.ids[first:past], kind)
        self.used[row] += filled
        self.count += 1

    def _picture(self, picture: Picture, row: int, start: int, kinds: NDArray[Any], source: NDArray[np.int32]) -> None:
        count, at = len(picture.patches), picture.start_at
        assert count <= self.shape.longest_image, "attention over patches is told a longest picture"
        span = slice(self.patch_at, self.patch_at + count)
        self.out["patches"][span], self.out["characters"][span] = picture.patches, picture.characters
        self.out["places"][span] = patch_places(picture.grid)
        squares = square_patches(picture.grid, round(self.shape.square**0.5))
        cells = slice(self.cell_at, self.cell_at + len(squares))
        blank = self.shape.patches + np.arange(squares.size).reshape(squares.shape) % BLANKS
        self.out["squares"][cells] = np.where(squares < 0, blank, squares + self.patch_at)
        last = at + int(np.argmax(kinds[at:] == Kind.END))
        here = slice(at, last + 1)
        source[here][kinds[here] == Kind.IMAGE] = self.shape.tokens + self.cell_at + np.arange(len(squares))
        self.out["first"][row, start + at : start + last + 1] = start + at
        self.out["last"][row, start + at : start + last + 1] = start + last
        self.patch_at += count
        self.cell_at += len(squares)
        self.image_edges.append(self.patch_at)

    def close(self) -> None:
        """Write edges and give padding rows' ends and images of their own."""
        shape = self.shape
        self._close_images()
        unused = np.arange((shape.cells - self.cell_at) * shape.square).reshape(-1, shape.square)
        first = self.patch_at if self.patch_at < shape.patches else 0  # of padding, spread as above
        self.out["squares"][self.cell_at :] = first + unused % (shape.patches - first)
        for row, used in enumerate(self.used):
            self.out["age"][row, used:] = np.arange(shape.row - used)
            self.out["start"][row, used:] = used


def fill_block_pack(
    shape: BlockPackShape, encoder: BlockEncoder, draw: Draw, seed: str, out: Arrays, limit: int = 0
) -> list[str]:
    """Fill `out` from `draw` with a generator of its own (0: until full); returns the kinds of the pack's answers."""
    return fill(BlockFiller(shape, encoder, out), draw, seed, limit)


def sight_pack(fields: dict[str, Tensor]) -> SightPack:
    """The model's inputs, widened to the types its operations want (part of a captured step)."""
    f = fields
    return SightPack(
        patches=f["patches"],
        cells=f["places"].int(),
        image_edges=f["image_edges"],
        squares=f["squares"].long(),
        ids=f["ids"].long(),
        source=f["source"].long(),
        image=f["image"].bool(),
        age=f["age"].int(),
        spans=Spans(f["start"].int(), f["first"].int(), f["last"].int()),
    )
