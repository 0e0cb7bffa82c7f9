"""The size that a picture is given before it becomes one of DeepSeek V4's image blocks, and how it gets there.

Owns the rule of DeepSeek-V4-Flash-Vision-Exp: small pictures grow, sides become whole patches, and a picture whose
block would be too long shrinks step by step until it fits. Promises the released arithmetic to the last rounding,
because the count of tokens follows from it. Refuses to know bytes, formats and limits.
"""

from __future__ import annotations

import math

from PIL import Image, ImageOps

from foveate.core.images import BlockRules, Grid, block_len, cells_of

GREY = (127, 127, 127)


def block_grid(width: int, height: int, rules: BlockRules) -> Grid:
    """Patches (down, across) of a picture: grown to the smallest area, squeezed to the widest ratio, cut to the budget.

    The k-th attempt to shrink works with k tokens less, as the rounding of one may miss its own budget.
    """
    width = min(width, rules.max_ratio * height)
    if width * height < rules.min_pixels:
        grow = (rules.min_pixels / (width * height)) ** 0.5
        width, height = int(width * grow), int(height * grow)
    grid, budget = (math.ceil(height / rules.patch), math.ceil(width / rules.patch)), rules.largest_block
    while block_len(cells_of(grid, rules.cell)) > rules.largest_block:
        grid, budget = _shrunk(width, height, budget, rules), budget - 1
    return grid


def _shrunk(width: int, height: int, budget: int, rules: BlockRules) -> Grid:
    """The largest grid for a budget of tokens, in the picture's shape where that is possible.

    In whole cells, `down * (across + 1) + 2` tokens are the budget; the number of rows is made even.
    """
    side, ratio = rules.patch * rules.cell, height / width
    across = math.sqrt((budget - 2) / ratio + 0.25) - 0.5
    down = across * ratio
    most = (budget - 2) // 2
    if across < 1:
        return (most - most % 2) * rules.cell, rules.cell
    if down < 2:
        return 2 * rules.cell, (most - 1) * rules.cell
    columns, rows = math.floor(across), math.floor(down)
    scale = min(columns * side / width, (rows - rows % 2) * side / height)
    return math.floor(height * scale / rules.patch), math.floor(width * scale / rules.patch)


def block_picture(image: Image.Image, grid: Grid, rules: BlockRules) -> Image.Image:
    """An RGB picture in the size of its grid: kept in shape on grey, but a very wide one is stretched."""
    size = (grid[1] * rules.patch, grid[0] * rules.patch)
    if image.width >= rules.max_ratio * image.height:
        return image.resize(size, Image.Resampling.BICUBIC)
    return ImageOps.pad(image, size, Image.Resampling.BICUBIC, GREY)
