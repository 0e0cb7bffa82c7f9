"""Workloads of DeepSeek V4: prompts with aligned blocks of random pictures, for the synchronous engine.

Owns pictures of the family's own sizes and the prompts they stand in. Knows nothing of what becomes of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from foveate.core.images import block_len, cells_of
from foveate.prompt.layout import lay_out_blocks
from tests.support.harness import Job
from tests.support.tiny_v4 import VOCAB
from tests.support.tiny_v4_vision import CELL, PATCH

PLACEHOLDER = 7  # <｜deepseek_image｜> of the tiny vocabulary
FIRST = 12  # ids below are control tokens


@dataclass(frozen=True)
class Square:
    """A random picture of `grid` patches, as a pixel source."""

    key: str
    grid: tuple[int, int]
    seed: int = 0

    @property
    def rows(self) -> int:
        return block_len(cells_of(self.grid, CELL))

    def pixels(self) -> Any:
        sides = (self.grid[0] * PATCH, self.grid[1] * PATCH, 3)
        return np.random.RandomState(self.seed).randint(0, 256, sides).astype(np.uint8)


def make_v4_job(seed: int, images: int, text_len: int = 20, **extra: Any) -> Job:
    """A prompt of random text with `images` pictures of random grids at random places; equal seeds, equal jobs."""
    rng = random.Random(seed)
    pictures = tuple(
        Square(f"{seed}-{i}", (rng.randint(1, 12), rng.randint(1, 12)), rng.randrange(10**6)) for i in range(images)
    )
    cuts = sorted(rng.randint(0, text_len - 1) for _ in range(images))
    ids: list[int] = []
    for at, token in enumerate(rng.randrange(FIRST, VOCAB) for _ in range(text_len)):
        ids += [PLACEHOLDER] * cuts.count(at)
        ids.append(token)
    return v4_job(ids, pictures, **extra)


def v4_job(ids: list[int], pictures: tuple[Square, ...], **extra: Any) -> Job:
    """A prompt whose placeholders are these pictures."""
    return Job(lay_out_blocks(ids, PLACEHOLDER, pictures, CELL, VOCAB), pictures, **extra)
