"""From a conversation to ids, blocks, patches and labels in DeepSeek V4's format: one segment of a training pack.

Owns the order of special tokens, the layout of image blocks inside a conversation, the resized pictures and where the
characters of a chart stand in them. Promises the very ids that a server renders for the same conversation (non-thinking
chat), built segment by segment. Refuses to choose conversations or to fill packs.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from foveate.core.images import BlockRules, Grid, Kind, block_of, cells_of, lead_len
from foveate.prompt.block_size import block_grid, block_picture
from recipe.deepseek_shapes import TowerShape
from recipe.tokenizer import special_ids

PER_PATCH = 3  # characters read out of one patch
BEGIN, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
END, PLAIN, JOIN = "<｜end▁of▁sentence｜>", "</think>", "\n\n"


@dataclass
class Picture:
    """One picture as a block: where START stands in the segment, and its patches row by row."""

    start_at: int
    grid: Grid
    patches: NDArray[np.uint8]  # [patches, 3 * patch * patch]
    characters: NDArray[np.int8]  # [patches, PER_PATCH]


@dataclass
class BlockSegment:
    """One conversation as arrays. kinds: -1 for text, else what an image token is (leading pads too)."""

    ids: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    answers: list[tuple[int, int, str]] = field(default_factory=list)  # first id, past the last id, kind


def rules_of(shape: TowerShape) -> BlockRules:
    """How this tower's pictures are sized."""
    return BlockRules(shape.patch, shape.cell, shape.min_pixels, shape.most_tokens, shape.max_ratio)


class BlockEncoder:
    """Encodes conversations with one tokenizer for one tower."""

    def __init__(self, tokenizer: Tokenizer, shape: TowerShape) -> None:
        self.tokenizer, self.shape, self.rules = tokenizer, shape, rules_of(shape)
        ids = special_ids(tokenizer)
        self.begin, self.user, self.assistant = ids[BEGIN], ids[USER], ids[ASSISTANT]
        self.end, self.plain = ids[END], ids[PLAIN]

    def text(self, text: str) -> list[int]:
        """Ids of plain text (the recipe writes no special tokens into it)."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def segment(self, conversation: Any, room: int) -> BlockSegment:
        """As many turns as fit into `room` ids (at least one, or an empty segment)."""
        out = BlockSegment([self.begin], [-1])
        charts = conversation.charts
        for number, turn in enumerate(conversation.turns):
            answer = [*self.text(turn.answer), self.end]
            asked = BlockSegment(list(out.ids), list(out.kinds))
            self._add(asked, [self.user])
            self._question(asked, conversation.parts if number == 0 else [("text", turn.question)], charts)
            self._add(asked, [self.assistant, self.plain])
            if len(asked.ids) + len(answer) > room:
                break
            first = len(asked.ids)
            self._add(asked, answer)
            asked.pictures = [*out.pictures, *asked.pictures]
            asked.answers = [*out.answers, (first, len(asked.ids), turn.kind)]
            out = asked
        return out if out.answers else BlockSegment()

    def image_len(self, size: tuple[int, int]) -> int:
        """Tokens of a picture of (width, height), leading pads not counted."""
        return len(block_of(cells_of(block_grid(size[0], size[1], self.rules), self.shape.cell)).kinds)

    def patch_len(self, size: tuple[int, int]) -> int:
        """Patches of a picture of (width, height)."""
        down, across = block_grid(size[0], size[1], self.rules)
        return down * across

    def _add(self, out: BlockSegment, ids: list[int]) -> None:
        out.ids += ids
        out.kinds += [-1] * len(ids)

    def _question(self, out: BlockSegment, parts: Any, charts: Any) -> None:
        """Parts with an empty line between them; neighbouring texts are one run of text to a tokenizer."""
        pending = ""
        for number, (kind, value) in enumerate(parts):
            pending += JOIN if number else ""
            if kind == "text":
                pending += value
                continue
            self._add(out, self.text(pending) if pending else [])
            pending = ""
            self._picture(out, charts[value])
        self._add(out, self.text(pending) if pending else [])

    def _picture(self, out: BlockSegment, chart: Any) -> None:
        grid = block_grid(*chart.image.size, self.rules)
        lead = [Kind.PAD] * lead_len(len(out.ids))
        kinds = [*lead, *block_of(cells_of(grid, self.shape.cell)).kinds]
        patches = patch_rows(block_picture(chart.image.convert("RGB"), grid, self.rules), self.shape.patch)
        characters = characters_of(chart.glyphs, chart.image.size, grid, self.shape.patch)
        out.pictures.append(Picture(len(out.ids) + len(lead), grid, patches, characters))
        out.ids += [0] * len(kinds)
        out.kinds += kinds


def patch_rows(image: Image.Image, patch: int) -> NDArray[np.uint8]:
    """A resized picture to [patches, 3 * patch * patch], row by row; values by channel, row, column."""
    pixels = np.asarray(image)
    down, across = pixels.shape[0] // patch, pixels.shape[1] // patch
    blocks = pixels.reshape(down, patch, across, patch, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(blocks).reshape(down * across, -1)


def characters_of(glyphs: Any, size: tuple[int, int], grid: Grid, patch: int) -> NDArray[np.int8]:
    """[patches, PER_PATCH]: the first characters of each patch in reading order, 0 for none.

    Glyphs are (character, x, y) in the picture before it was padded to its grid.
    """
    wide, high = grid[1] * patch, grid[0] * patch
    scale = min(wide / size[0], high / size[1])
    left, top = (wide - size[0] * scale) / 2, (high - size[1] * scale) / 2
    found: dict[tuple[int, int], list[tuple[int, float, int]]] = {}
    for char, x, y in glyphs:
        x, y = x * scale + left, y * scale + top
        column, row = int(x // patch), int(y // patch)
        if 0 <= column < grid[1] and 0 <= row < grid[0]:
            code = ord(char) - 32
            found.setdefault((row, column), []).append((round(y / 8), x, code if 0 < code < 95 else 95))
    out = np.zeros((*grid, PER_PATCH), np.int8)
    for (row, column), here in found.items():
        for slot, (_, _, code) in enumerate(sorted(here)[:PER_PATCH]):
            out[row, column, slot] = code
    return out.reshape(-1, PER_PATCH)


@lru_cache(maxsize=256)
def patch_places(grid: Grid) -> NDArray[np.int16]:
    """[patches, 2]: row and column of every patch."""
    down, across = grid
    return np.stack(np.divmod(np.arange(down * across), across), -1).astype(np.int16)


@lru_cache(maxsize=256)
def square_patches(grid: Grid, cell: int) -> NDArray[np.int32]:
    """[cells, cell * cell]: the patches of each cell in the order of the block's IMAGE tokens; -1 beyond the edge."""
    down, across = cells_of(grid, cell)
    field = np.full((down * cell, across * cell), -1, np.int32)
    field[: grid[0], : grid[1]] = np.arange(grid[0] * grid[1]).reshape(grid)
    squares = field.reshape(down, cell, across, cell).transpose(0, 2, 1, 3).reshape(down * across, cell * cell)
    return np.ascontiguousarray(squares[list(block_of((down, across)).cells)])
