"""DeepSeek's image block: the rules by which a picture's grid becomes a run of tokens, and what each token of it is.

Owns the order START, body, END, in which pairs of cell rows are interleaved column by column so that every aligned
group of four tokens is a square of 2x2 cells, and the counts that follow from it. The floor that lays prompts out and
the one that encodes both need it and must not disagree. Promises that a block depends on its grid alone; where it
stands decides only how many pads lead up to it. Standard library only; refuses to know pixels, tensors and token ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

GROUP = 4  # tokens of an aligned group, which the text model's compressor turns into one entry
Grid = tuple[int, int]  # (down, across)


class Kind(IntEnum):
    """What a token of an image is. Its id is the vocabulary's size plus this."""

    START = 0
    PAD = 1
    IMAGE = 2
    NEWLINE = 3
    END = 4


@dataclass(frozen=True, slots=True)
class BlockRules:
    """How DeepSeek V4 turns a picture's size into a grid of patches and a block; read from the checkpoint's config.

    patch: pixels of a patch's side. cell: patches of a cell's side; a cell is one row of the encoder. max_tokens: of a
    block with the pads that may lead up to it. max_ratio: how much wider than high a picture may be before it is
    squeezed.
    """

    patch: int
    cell: int
    min_pixels: int
    max_tokens: int
    max_ratio: int

    @property
    def largest_block(self) -> int:
        """The most tokens from START to END."""
        return self.max_tokens - (GROUP - 1)


def cells_of(grid: Grid, cell: int) -> Grid:
    """Cells (down, across) of a grid of patches; a cell at the edge may be partly empty."""
    return -(-grid[0] // cell), -(-grid[1] // cell)


def block_len(cells: Grid) -> int:
    """Tokens from START to END."""
    down, across = cells
    pairs = (down + down % 2) // 2 * (across + 1)
    return 2 * pairs + 2 * (pairs % 2) + 2


def lead_len(at: int) -> int:
    """Pads before a block that may begin at index `at` or later: START stands where the index leaves 3, modulo 4."""
    return GROUP - 1 - at % GROUP


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens of an image from START to END.

    kinds: of each. cells: the number of the cell, counted row by row, that each IMAGE token shows, in their order.
    """

    kinds: tuple[Kind, ...]
    cells: tuple[int, ...]


@lru_cache(maxsize=256)
def block_of(cells: Grid) -> Block:
    """The block of a picture of so many cells (down, across).

    A row of cells ends in a NEWLINE; a last row without a partner gets one of PADs. Two rows become one run, column by
    column. PADs fill the last group.
    """
    down, across = cells
    lines = [[*range(row * across, (row + 1) * across), Kind.NEWLINE] for row in range(down)]
    lines += [[Kind.PAD] * (across + 1)] * (down % 2)
    pairs = zip(lines[::2], lines[1::2], strict=True)
    body = [token for upper, lower in pairs for column in zip(upper, lower, strict=True) for token in column]
    body += [Kind.PAD] * (len(body) % GROUP)
    kinds = (token if isinstance(token, Kind) else Kind.IMAGE for token in body)
    shown = tuple(token for token in body if not isinstance(token, Kind))
    return Block((Kind.START, *kinds, Kind.END), shown)
