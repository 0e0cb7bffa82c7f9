"""From a conversation to ids, patches and labels: what one segment of a training pack holds.

Owns the order of patches, the placement of image placeholders and of M-RoPE positions, and the labels (answers and
their end token alone). Promises the very ids that the chat template renders, built segment by segment. Refuses to
choose conversations or to fill packs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

PATCH = 16
CELL = 32  # one row of the language model: 2 x 2 patches
SLOTS = 12  # characters read out of one cell: 3 a patch
CHARACTERS = 97  # none, printable ASCII 33..126, everything else


@dataclass
class Segment:
    """One conversation as arrays; `images` index the ids by order of appearance."""

    ids: list[int] = field(default_factory=list)
    image_at: list[int] = field(default_factory=list)  # where each image's first placeholder stands
    grids: list[tuple[int, int]] = field(default_factory=list)  # patches down, across
    patches: list[NDArray[np.uint8]] = field(default_factory=list)
    characters: list[NDArray[np.int8]] = field(default_factory=list)
    answers: list[tuple[int, int, str]] = field(default_factory=list)  # first id, past the last id, kind


class Encoder:
    """Encodes conversations with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        name = tokenizer.token_to_id
        self.start, self.end = name("<|im_start|>"), name("<|im_end|>")
        self.vision_start, self.vision_end = name("<|vision_start|>"), name("<|vision_end|>")
        self.pad = name("<|image_pad|>")
        self.newline = tokenizer.encode("\n").ids
        self.user = [self.start, *tokenizer.encode("user\n").ids]
        self.assistant = [self.start, *tokenizer.encode("assistant\n").ids]

    def text(self, text: str) -> list[int]:
        """Ids of plain text (the recipe writes no special tokens into it)."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def segment(self, conversation: Any, room: int) -> Segment:
        """As many turns as fit into `room` ids (at least one, or an empty segment)."""
        out = Segment()
        charts = [chart.image for chart in conversation.charts]
        for number, turn in enumerate(conversation.turns):
            question = self.question(conversation.parts if number == 0 else [("text", turn.question)], charts)
            answer = [*self.text(turn.answer), self.end]
            lead = [*self.user, *question, self.end, *self.newline, *self.assistant]
            if len(out.ids) + len(lead) + len(answer) + len(self.newline) > room:
                break
            if number == 0:
                self._images(out, lead, conversation.charts)
            first = len(out.ids) + len(lead)
            out.answers.append((first, first + len(answer), turn.kind))
            out.ids += [*lead, *answer, *self.newline]
        return out

    def question(self, parts: Sequence[tuple[str, Any]], charts: Sequence[Any]) -> list[int]:
        """Ids of a user message's content; parts are ("text", words) and ("image", number of the chart)."""
        ids: list[int] = []
        pending = ""  # neighbouring texts are one run of text to a tokenizer
        for kind, value in parts:
            if kind == "text":
                pending += value
                continue
            width, height = charts[value].size
            ids += self.text(pending) if pending else []
            pending = ""
            ids += [self.vision_start, *[self.pad] * (width * height // CELL**2), self.vision_end]
        return ids + (self.text(pending) if pending else [])

    def _images(self, out: Segment, lead: list[int], charts: Any) -> None:
        starts = [i + 1 for i, token in enumerate(lead) if token == self.vision_start]
        for at, chart in zip(starts, charts, strict=True):
            pixels = np.asarray(chart.image)
            out.image_at.append(at)
            out.grids.append((pixels.shape[0] // PATCH, pixels.shape[1] // PATCH))
            out.patches.append(patchify(pixels))
            out.characters.append(character_slots(chart.glyphs, pixels.shape[1], pixels.shape[0]))


def patchify(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[height, width, 3] to [patches, 768], in merge-block order; sides must be multiples of 32."""
    high, wide = pixels.shape[0], pixels.shape[1]
    if high % CELL or wide % CELL:
        raise ValueError(f"a chart of {wide}x{high} pixels does not divide into cells of {CELL}")
    blocks = pixels.reshape(high // CELL, 2, PATCH, wide // CELL, 2, PATCH, 3)
    return np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, 3 * PATCH * PATCH)


@lru_cache(maxsize=256)
def grid_cells(down: int, across: int) -> NDArray[np.int32]:
    """[patches, 4]: row, column, rows, columns of every patch, in merge-block order."""
    rows, columns = np.meshgrid(np.arange(down), np.arange(across), indexing="ij")
    both = np.stack([rows, columns], -1).reshape(down // 2, 2, across // 2, 2, 2).transpose(0, 2, 1, 3, 4)
    both = both.reshape(-1, 2)
    size = np.broadcast_to(np.array([down, across]), both.shape)
    return np.concatenate([both, size], 1).astype(np.int32)


def character_slots(glyphs: Any, width: int, height: int) -> NDArray[np.int8]:
    """[cells, 12]: for each patch of a cell its first three characters, in reading order; 0 is none."""
    across, down = width // PATCH, height // PATCH
    found: dict[tuple[int, int], list[tuple[int, float, int]]] = {}
    for char, x, y in glyphs:
        column, row = int(x // PATCH), int(y // PATCH)
        if 0 <= column < across and 0 <= row < down:
            code = ord(char) - 32
            found.setdefault((row, column), []).append((round(y / 8), x, code if 0 < code < 95 else 95))
    out = np.zeros((down // 2, across // 2, 2, 2, 3), np.int8)
    for (row, column), here in found.items():
        for slot, (_, _, code) in enumerate(sorted(here)[:3]):
            out[row // 2, column // 2, row % 2, column % 2, slot] = code
    return out.reshape(-1, SLOTS)


def rope_positions(length: int, image_at: list[int], grids: list[tuple[int, int]]) -> NDArray[np.int32]:
    """M-RoPE positions [3, length] of a segment whose images start at `image_at` (placeholders counted)."""
    out = np.empty((3, length), np.int32)
    token, now = 0, 0
    for at, (down, across) in zip(image_at, grids, strict=True):
        out[:, token:at] = now + np.arange(at - token)
        now += at - token
        rows, columns = down // 2, across // 2
        span = slice(at, at + rows * columns)
        out[0, span] = now
        out[1, span] = now + np.repeat(np.arange(rows), columns)
        out[2, span] = now + np.tile(np.arange(columns), rows)
        now += max(rows, columns)
        token = at + rows * columns
    out[:, token:] = now + np.arange(length - token)
    return out
