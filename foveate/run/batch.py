"""Lays the slices of a plan out as one flat batch on the model's device.

Owns the translation from integers to tensors: ids, rope positions, page tables, slots, image rows gathered into place.
Promises that everything small stays known to Python, so that no model has to read it back. Decides nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foveate.core.plan import Slice
from foveate.models.interface import Batch
from foveate.run.embeds import RowStore


def lay_out(slices: Sequence[Slice], rows: RowStore, device: str) -> Batch:
    """One batch for one forward over all slices, in their order."""
    ids = array("q")
    for piece in slices:
        ids.extend(piece.tokens)
    axes = [array("q") for _ in slices[0].positions]
    for piece in slices:
        for axis, part in zip(axes, piece.positions, strict=True):
            axis.extend(part)
    image_rows, image_at = _image_rows(slices, rows)
    return Batch(
        ids=_tensor(ids, device),
        positions=torch.stack([_tensor(axis, device) for axis in axes]),
        query_lens=tuple(len(piece.tokens) for piece in slices),
        past_lens=tuple(piece.start_at for piece in slices),
        pages=_page_table(slices, device),
        slots=torch.tensor([piece.state_slot for piece in slices], device=device),
        logits_at=_tensor(_wanted(slices), device),
        image_rows=image_rows,
        image_at=None if image_at is None else _tensor(image_at, device),
        blocks=_blocks(slices),
        verify=tuple(piece.draft_len > 0 for piece in slices),
        parents=tuple(piece.parents for piece in slices),
    )


def _tensor(values: array[int], device: str) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device, non_blocking=True)


def _page_table(slices: Sequence[Slice], device: str) -> Tensor:
    table = np.zeros((len(slices), max(len(piece.pages) for piece in slices)), dtype=np.int64)
    for row, piece in enumerate(slices):
        table[row, : len(piece.pages)] = piece.pages
    return torch.from_numpy(table).to(device, non_blocking=True)


def _wanted(slices: Sequence[Slice]) -> array[int]:
    """Flat indices whose logits are sampled from: a drawing slice's last token, and its drafts' predecessors."""
    wanted, end_at = array("q"), 0
    for piece in slices:
        end_at += len(piece.tokens)
        if piece.draw is not None:
            wanted.extend(range(end_at - piece.draft_len - 1, end_at))
    return wanted


def _image_rows(slices: Sequence[Slice], rows: RowStore) -> tuple[Tensor | None, array[int] | None]:
    """The rows that replace embeddings, concatenated, and their flat indices; (None, None) without images."""
    parts, at, base = [], array("q"), 0
    for piece in slices:
        for span in piece.spans:
            start_at, end_at = max(span.start_at, piece.start_at), min(span.end_at, piece.end_at)
            parts.append(rows.get(span.key)[start_at - span.start_at : end_at - span.start_at])
            at.extend(range(base + start_at - piece.start_at, base + end_at - piece.start_at))
        base += len(piece.tokens)
    return (torch.cat(parts), at) if parts else (None, None)


def _blocks(slices: Sequence[Slice]) -> tuple[tuple[int, int], ...]:
    """Where the atomic spans stand on the flat axis; each is whole."""
    blocks, base = list[tuple[int, int]](), 0
    for piece in slices:
        for span in piece.spans:
            if span.atomic and span.end_at > piece.start_at:
                assert piece.start_at <= span.start_at and span.end_at <= piece.end_at, "an atomic span was split"
                blocks.append((base + span.start_at - piece.start_at, base + span.end_at - piece.start_at))
        base += len(piece.tokens)
    return tuple(blocks)
