"""Image rows on the language model's device, by content key.

Owns the tensors only: which rows are wanted, and when they may go, is decided by the scheduler's plans. A key is put
whole or not at all; rows are never written after they were put.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowStore:
    """Rows of landed images: key -> [rows, hidden] in the model's dtype on its device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._rows: dict[str, Tensor] = {}

    def put(self, key: str, rows: Tensor) -> None:
        """Copy rows to the model's device. Equal keys mean equal rows, so a second put is harmless."""
        # Nobody waits for a copy to the host, so that one may not be left under way.
        self._rows[key] = rows.to(device=self._device, dtype=self._dtype, non_blocking=self._device != "cpu")

    def get(self, key: str) -> Tensor:
        return self._rows[key]

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def drop(self, key: str) -> None:
        """Forget a key's rows; a key that is not there is ignored."""
        self._rows.pop(key, None)

    @property
    def count(self) -> int:
        """Rows held, over all keys."""
        return sum(len(rows) for rows in self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)
