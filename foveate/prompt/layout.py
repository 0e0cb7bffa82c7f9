"""Where images stand in a prompt: placeholders become runs of rows, and every token gets its rope positions.

Owns the expansion of each placeholder id into as many ids as its picture has rows, the spans that say which rows these
are, and the three position axes of interleaved M-RoPE. Needs a picture's grid and key only, so everything is fixed
before a pixel is decoded. Refuses to know templates, tensors and what the rows will hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from foveate.core.errors import InvalidRequest
from foveate.core.values import PixelSource, Positions, Prompt, Span

Axes = np.ndarray  # [3, tokens] int64: temporal, height, width


def lay_out(ids: Sequence[int], placeholder_id: int | None, pictures: Sequence[PixelSource], merge: int) -> Prompt:
    """The prompt in which the k-th `placeholder_id` of `ids` has become the rows of the k-th picture.

    `merge` is the side of the square of patches that gives one row. Positions follow Qwen's M-RoPE (`get_rope_index`
    of its reference code): text counts on on all axes; row (r, c) of an image that starts at position p stands at
    (p, p + r, p + c), and what follows starts at p + max(rows down, rows across). Raises InvalidRequest when the
    numbers of placeholders and pictures differ.
    """
    places = [at for at, token in enumerate(ids) if token == placeholder_id]
    if len(places) != len(pictures):
        raise InvalidRequest(f"the prompt has {len(places)} image placeholders for {len(pictures)} images", "messages")
    tokens: list[int] = []
    blocks: list[Axes] = []
    spans: list[Span] = []
    position, done = 0, 0
    for place, picture in zip(places, pictures, strict=True):
        tokens.extend(ids[done:place])
        blocks.append(_text_axes(position, place - done))
        position += place - done
        spans.append(Span(picture.key, len(tokens), picture.rows, picture.grid))
        tokens.extend([ids[place]] * picture.rows)
        blocks.append(_image_axes(position, picture, merge))
        position += max(picture.grid) // merge
        done = place + 1
    tokens.extend(ids[done:])
    blocks.append(_text_axes(position, len(ids) - done))
    position += len(ids) - done
    return Prompt(tuple(tokens), _positions(blocks, position - len(tokens)), tuple(spans))


def _text_axes(start: int, length: int) -> Axes:
    return np.broadcast_to(np.arange(start, start + length, dtype=np.int64), (3, length))


def _image_axes(start: int, picture: PixelSource, merge: int) -> Axes:
    down, across = (side // merge for side in picture.grid)
    assert down * across == picture.rows > 0, "a picture's rows are not those of its grid"
    row, column = np.divmod(np.arange(down * across, dtype=np.int64), across)
    return start + np.stack((np.zeros_like(row), row, column))


def _positions(blocks: list[Axes], offset: int) -> Positions:
    axes = np.concatenate(blocks, axis=1)
    return Positions(tuple(array("q", np.ascontiguousarray(axis).tobytes()) for axis in axes), offset)
