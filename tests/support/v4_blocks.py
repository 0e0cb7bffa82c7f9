"""DeepSeek V4's image sizes and blocks read off their description, word by word and slowly.

Owns a second opinion for tests: nothing of foveate is imported, and the block is built from a picture of the cells on
paper rather than from a formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

START, PAD, IMAGE, NEWLINE, END = range(5)


@dataclass(frozen=True)
class Sizes:
    """The numbers of the rule; those of the release by default."""

    patch: int = 14
    cell: int = 3
    min_pixels: int = 147456
    max_tokens: int = 384
    max_ratio: int = 8


RELEASED = Sizes()


def block(start: int, down: int, across: int) -> list[tuple[int, int | None]]:
    """(kind, cell) of every token of a block that is written from index `start` on, lead pads too."""
    out: list[tuple[int, int | None]] = []
    while (start + len(out)) % 4 != 3:
        out.append((PAD, None))
    out.append((START, None))
    paper = {(r, c): (IMAGE, r * across + c) for r in range(down) for c in range(across)}
    paper |= {(r, across): (NEWLINE, None) for r in range(down)}
    if down % 2:
        paper |= {(down, c): (PAD, None) for c in range(across + 1)}
    body = []
    for pair in range((down + 1) // 2):
        for column in range(across + 1):
            body += [paper[2 * pair, column], paper[2 * pair + 1, column]]
    if len(body) % 4:
        body += [(PAD, None), (PAD, None)]
    return [*out, *body, (END, None)]


def token_count(down: int, across: int) -> int:
    """Tokens from START to END by the counting rule."""
    rows = down if down % 2 == 0 else down + 1
    odd = (rows // 2 * (across + 1)) % 2
    return rows * (across + 1) + 2 + (2 if odd else 0)


def cells(height: int, width: int, sizes: Sizes = RELEASED) -> tuple[int, int]:
    """Rows and columns of cells of a size in whole patches."""
    return tuple(math.ceil(side / sizes.patch / sizes.cell) for side in (height, width))  # type: ignore[return-value]


def resized(width: int, height: int, sizes: Sizes = RELEASED) -> tuple[int, int]:
    """(height, width) in pixels that a picture is given."""
    w, h = width, height
    if w > sizes.max_ratio * h:
        w = sizes.max_ratio * h
    if w * h < sizes.min_pixels:
        s = math.sqrt(sizes.min_pixels / (w * h))
        w, h = int(w * s), int(h * s)
    most = sizes.max_tokens - 3
    up = sizes.patch
    size = (math.ceil(h / up) * up, math.ceil(w / up) * up)
    b = most
    while token_count(*cells(*size, sizes)) > most:
        size = solve(w, h, b, sizes)
        b -= 1
    return size


def solve(w: int, h: int, b: int, sizes: Sizes) -> tuple[int, int]:
    """The size for a budget of b tokens."""
    pixels, patch = sizes.patch * sizes.cell, sizes.patch
    r = h / w
    mw = math.sqrt((b - 2) / r + 0.25) - 0.5
    mh = mw * r
    if mw < 1:
        tall = (b - 2) // 2
        return (tall // 2 * 2) * pixels, pixels
    if mh < 2:
        return 2 * pixels, ((b - 2) // 2 - 1) * pixels
    mw, mh = math.floor(mw), math.floor(mh) // 2 * 2
    beta = min(mw * pixels / w, mh * pixels / h)
    return math.floor(h * beta / patch) * patch, math.floor(w * beta / patch) * patch
