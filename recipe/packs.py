"""Fixed-size packs: conversations laid side by side until the rows or the patches are full.

Owns the pack's layout in one flat buffer (shared between the drawing processes and the trainer) and the filling rule.
Promises that pack `n` of a seed is the same on every machine and every run, that no conversation crosses a row, and
that padding never touches a real token. Knows nothing about processes or GPUs.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recipe.encode import SLOTS, Encoder, Segment, grid_cells, rope_positions

Arrays = dict[str, NDArray[Any]]
Fields = dict[str, tuple[tuple[int, ...], type]]  # name to (shape, type)
Draw = Callable[[random.Random], Any]
TURN_LEN = 36  # tokens of a question and its answer, roughly


class Packs(Protocol):
    """Sizes of the packs of one family."""

    @property
    def longest_image(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def fields(self) -> Fields: ...

    def view(self, buffer: Any, offset: int = 0) -> Arrays: ...


@dataclass(frozen=True)
class PackShape:
    """Sizes of a pack; `row` must be a multiple of the DeltaNet's chunk (64)."""

    rows: int = 21
    row: int = 1536
    patches: int = 49152
    labels: int = 10240
    longest_image: int = 1200  # patches of the largest chart
    images: int = 320
    segments: int = 448

    @property
    def tokens(self) -> int:
        """Tokens in a pack, padding included."""
        return self.rows * self.row

    def fields(self) -> Fields:
        """Name to (shape, type) of every array."""
        return {
            "patches": ((self.patches, 768), np.uint8),
            "cells": ((self.patches, 4), np.int16),
            "image_edges": ((self.images + 1,), np.int32),
            "characters": ((self.patches // 4, SLOTS), np.int8),
            "ids": ((self.rows, self.row), np.int32),
            "source": ((self.tokens,), np.int32),
            "where": ((3, self.tokens), np.int16),
            "age": ((self.rows, self.row), np.int16),
            "edges": ((self.segments + 1,), np.int32),
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


def field_bytes(fields: Fields) -> int:
    """Bytes of a buffer that holds all fields."""
    return sum(_room(shape, kind) for shape, kind in fields.values())


def view_fields(fields: Fields, buffer: Any, offset: int) -> Arrays:
    """The arrays of all fields inside `buffer`, from `offset` on."""
    out: Arrays = {}
    for name, (shape, kind) in fields.items():
        out[name] = np.frombuffer(buffer, kind, int(np.prod(shape)), offset).reshape(shape)
        offset += _room(shape, kind)
    return out


def _room(shape: tuple[int, ...], kind: type) -> int:
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return -(-size // 64) * 64


class Filler:
    """What fillers of all families count, and what they write alike. `count` conversations have been placed."""

    def __init__(self, shape: Any, out: Arrays) -> None:
        self.shape, self.out = shape, out
        self.used = [0] * shape.rows  # ids in each row
        self.patch_at, self.label_at, self.answers, self.count = 0, 0, 0, 0
        self.image_edges = [0]
        self.kinds: list[str] = []
        out["source"][:] = np.arange(shape.tokens)
        out["label_at"][:] = np.arange(shape.labels)  # spread, so that their gradients do not queue up on one row
        out["answer"][:] = -1

    def add(self, conversation: Any, least: int = 1) -> bool:
        """Place a conversation, with as many turns as fit; False where fewer than `least` turns would."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what the padding needs."""
        raise NotImplementedError

    def _lacks_images(self, patches: int, images: int) -> bool:
        """Whether there is no room for so many more patches and images."""
        return patches > self.shape.patches - self.patch_at or len(self.image_edges) + images > self.shape.images - 48

    def _fits(self, segment: Any, least: int) -> bool:
        """Whether a segment has `least` answers, and their tokens have room."""
        labels = sum(past - first for first, past, _ in segment.answers)
        return len(segment.answers) >= least and labels <= self.shape.labels - self.label_at

    def _row(self, image_len: int, turns: int) -> int | None:
        """The fullest row with room for every turn, else the emptiest with room for a few."""
        room = [self.shape.row - used for used in self.used]
        whole = [r for r, free in enumerate(room) if free >= image_len + TURN_LEN * turns]
        if whole:
            return min(whole, key=lambda r: room[r])
        best = max(range(len(room)), key=lambda r: room[r])
        return best if room[best] >= image_len + TURN_LEN * min(turns, 4) else None

    def _label(self, first: int, ids: list[int], kind: str) -> None:
        span = slice(self.label_at, self.label_at + len(ids))
        self.out["label_at"][span] = first - 1 + np.arange(len(ids))
        self.out["label"][span] = ids
        self.out["weight"][span] = len(ids) ** -0.5
        self.out["answer"][span] = self.answers
        self.kinds.append(kind)
        self.answers += 1
        self.label_at += len(ids)

    def _close_images(self) -> None:
        """Write the images' edges; padding patches are white and images of their own."""
        shape, edges = self.shape, list(self.image_edges)
        while edges[-1] < shape.patches:
            edges.append(min(edges[-1] + shape.longest_image, shape.patches))
        self.out["image_edges"][:] = edges + [shape.patches] * (shape.images + 1 - len(edges))
        self.out["patches"][self.patch_at :] = 255


def fill(filler: Filler, draw: Draw, seed: str, limit: int) -> list[str]:
    """Fill a pack from `draw` with a generator of its own (limit 0: until full); the kinds of the pack's answers."""
    rng = random.Random(seed)
    misses = 0
    while misses < 3 and (not limit or filler.count < limit):
        misses += not filler.add(draw(rng), least=3)
    filler.close()
    return filler.kinds


class PackFiller(Filler):
    """Fills one pack's arrays from conversations."""

    def __init__(self, shape: PackShape, encoder: Encoder, out: Arrays) -> None:
        super().__init__(shape, out)
        self.encoder = encoder
        self.spans: list[tuple[int, int]] = []
        for name in ("ids", "where", "age", "weight", "label", "cells", "characters"):
            out[name][:] = 0

    def add(self, conversation: Any, least: int = 1) -> bool:
        """Place a conversation, with as many turns as fit; False where fewer than `least` turns would."""
        sizes = [chart.image.size for chart in conversation.charts]
        patches = sum(width * height // 256 for width, height in sizes)
        if self._lacks_images(patches, len(sizes)):
            return False
        row = self._row(patches // 4, len(conversation.turns))
        if row is None or len(self.spans) >= self.shape.segments - self.shape.rows - 1:
            return False
        segment = self.encoder.segment(conversation, self.shape.row - self.used[row])
        if not self._fits(segment, min(least, len(conversation.turns))):
            return False
        self._place(segment, row)
        return True

    def _place(self, segment: Segment, row: int) -> None:
        start, length = self.used[row], len(segment.ids)
        flat = row * self.shape.row + start
        span = slice(start, start + length)
        self.out["ids"][row, span] = segment.ids
        self.out["age"][row, span] = np.arange(length)
        self.out["where"][:, flat : flat + length] = rope_positions(length, segment.image_at, segment.grids)
        for at, grid, patches, characters in zip(
            segment.image_at, segment.grids, segment.patches, segment.characters, strict=True
        ):
            count = len(patches)
            self.out["patches"][self.patch_at : self.patch_at + count] = patches
            self.out["cells"][self.patch_at : self.patch_at + count] = grid_cells(*grid)
            first = self.patch_at // 4
            self.out["characters"][first : first + count // 4] = characters
            source = self.shape.tokens + first + np.arange(count // 4)
            self.out["source"][flat + at : flat + at + count // 4] = source
            self.patch_at += count
            self.image_edges.append(self.patch_at)
        for first, past, kind in segment.answers:
            self._label(flat + first, segment.ids[first:past], kind)
        self.spans.append((flat, flat + length))
        self.used[row] += length
        self.count += 1

    def close(self) -> None:
        """Write edges and give padding segments and images of its own."""
        shape = self.shape
        self._close_images()
        self.out["cells"][self.patch_at :, 2:] = 2
        cuts = {0, shape.tokens, *(edge for span in self.spans for edge in span)}
        cuts |= {r * shape.row for r in range(shape.rows)}
        ordered = sorted(cuts)
        self.out["edges"][:] = ordered + [shape.tokens] * (shape.segments + 1 - len(ordered))
        for row, used in enumerate(self.used):
            self.out["age"][row, used:] = np.arange(shape.row - used)


def fill_pack(shape: PackShape, encoder: Encoder, draw: Draw, seed: str, out: Arrays, limit: int = 0) -> list[str]:
    """Fill `out` from `draw` with a generator of its own (0: until full); returns the kinds of the pack's answers."""
    return fill(PackFiller(shape, encoder, out), draw, seed, limit)
