"""Where images stand in a prompt: placeholders become runs of rows, and every token gets its rope positions.

Owns the expansion of each placeholder id into as many ids as its picture has rows, the spans that say which rows these
are, the three position axes of interleaved M-RoPE (Qwen) and the aligned blocks of DeepSeek V4. Needs a picture's grid
and key only, so everything is fixed before a pixel is decoded. Refuses to know templates, tensors and what the rows
will hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from foveate.core.errors import InvalidRequest
from foveate.core.images import BlockRules, Kind, block_of, cells_of, lead_len
from foveate.core.values import ModelCard, PixelSource, Positions, Prompt, Span, plain_positions

Axes = np.ndarray  # [3, tokens] int64: temporal, height, width


def lay_out_for(card: ModelCard, ids: Sequence[int], pictures: Sequence[PixelSource]) -> Prompt:
    """The prompt as the model wants it; raises as `lay_out` does.

    Without pictures, what looks like a placeholder is an ordinary token.
    """
    placeholder_id, rules = card.image_token_id if pictures else None, card.image_rules
    if isinstance(rules, BlockRules):
        return lay_out_blocks(ids, placeholder_id, pictures, rules.cell, card.vocab_size)
    if rules is None:
        assert not pictures, "pictures for a model without eyes"
        return Prompt(tuple(ids), plain_positions(len(ids), card.axes))
    return lay_out(ids, placeholder_id, pictures, rules.merge)


def lay_out(ids: Sequence[int], placeholder_id: int | None, pictures: Sequence[PixelSource], merge: int) -> Prompt:
    """The prompt in which the k-th `placeholder_id` of `ids` has become the rows of the k-th picture.

    `merge` is the side of the square of patches that gives one row. Positions follow Qwen's M-RoPE (`get_rope_index`
    of its reference code): text counts on on all axes; row (r, c) of an image that starts at position p stands at
    (p, p + r, p + c), and what follows starts at p + max(rows down, rows across). Raises InvalidRequest when the
    numbers of placeholders and pictures differ.
    """
    places = _places(ids, placeholder_id, pictures)
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


def lay_out_blocks(
    ids: Sequence[int], placeholder_id: int | None, pictures: Sequence[PixelSource], cell: int, vocab_size: int
) -> Prompt:
    """The prompt in which the k-th `placeholder_id` of `ids` has become the block of the k-th picture.

    DeepSeek V4's rule: every token of an image has the id `vocab_size` + kind, pads lead up to a START whose index
    leaves 3 modulo 4, and positions count on through all of it. A span is a block from START to END, atomic because its
    tokens see each other both ways. Raises InvalidRequest when the numbers of placeholders and pictures differ.
    """
    tokens: list[int] = []
    spans: list[Span] = []
    done = 0
    for place, picture in zip(_places(ids, placeholder_id, pictures), pictures, strict=True):
        tokens.extend(ids[done:place])
        lead = lead_len(len(tokens))
        tokens.extend([vocab_size + Kind.PAD] * lead)
        kinds = block_of(cells_of(picture.grid, cell)).kinds
        assert len(kinds) == picture.rows, "a picture's rows are not those of its grid"
        spans.append(Span(picture.key, len(tokens), picture.rows, picture.grid, atomic=True, lead_len=lead))
        tokens.extend(vocab_size + kind for kind in kinds)
        done = place + 1
    tokens.extend(ids[done:])
    return Prompt(tuple(tokens), plain_positions(len(tokens)), tuple(spans))


def _places(ids: Sequence[int], placeholder_id: int | None, pictures: Sequence[PixelSource]) -> list[int]:
    """Where the placeholders stand, as many as there are pictures."""
    places = [at for at, token in enumerate(ids) if token == placeholder_id]
    if len(places) != len(pictures):
        raise InvalidRequest(f"the prompt has {len(places)} image placeholders for {len(pictures)} images", "messages")
    return places


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
