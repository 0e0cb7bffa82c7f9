"""The last rows of each sequence, kept in state slots by position: the row of position p stands at p modulo the length.

Owns the arithmetic from (sequence, positions) to places in such rings. Because a place follows from the position
alone, nothing has to be cleared or moved: a sequence reads only positions that it has passed, and rows of drafts that
were rejected are simply never written. Lengths are Python integers; nothing is read back from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions [start_at, end_at) of the batch's sequence number `sequence`."""

    sequence: int
    start_at: int
    end_at: int

    def __len__(self) -> int:
        return self.end_at - self.start_at


def positions_of(stretches: Sequence[Stretch]) -> Tensor:
    """All positions, one stretch after another: int64 [rows] on the CPU."""
    parts = [torch.arange(part.start_at, part.end_at) for part in stretches]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def ring_places(slots: Tensor, stretches: Sequence[Stretch], ring_len: int) -> Tensor:
    """Flat places (slot * ring_len + position modulo ring_len) [rows]; slots: int64 [sequences]."""
    owners, lens = torch.tensor([(part.sequence, len(part)) for part in stretches], dtype=torch.int64).view(-1, 2).T
    row, at = torch.stack([owners.repeat_interleave(lens), positions_of(stretches) % ring_len]).to(slots.device)
    places: Tensor = slots[row] * ring_len + at
    return places


@dataclass(frozen=True, slots=True)
class Keep:
    """Which of a step's rows a ring keeps, and where: both int64 [rows]."""

    take: Tensor
    write_at: Tensor

    def write(self, ring: Tensor, rows: Tensor) -> None:
        """Keep rows of [tokens, ...] in ring [slots, ring_len, ...]."""
        ring.flatten(0, 1).index_copy_(0, self.write_at, rows.index_select(0, self.take).to(ring.dtype))


def plan_keep(slots: Tensor, stretches: Sequence[Stretch], starts: Sequence[int], ring_len: int) -> Keep:
    """Keep the last ring_len rows of each stretch; starts: where each begins on the step's flat axis."""
    last = [Stretch(part.sequence, max(part.start_at, part.end_at - ring_len), part.end_at) for part in stretches]
    ends = [start + len(part) for start, part in zip(starts, stretches, strict=True)]
    flat = [Stretch(0, end - len(part), end) for end, part in zip(ends, last, strict=True)]
    return Keep(positions_of(flat).to(slots.device), ring_places(slots, last, ring_len))
