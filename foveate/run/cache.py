"""Allocates what a model keeps per sequence, and says how much of it fits.

Owns the tensors behind pages and state slots; who holds which page is the scheduler's knowledge. Promises one
allocation at start and none later. On a GPU the number of tokens comes from a measurement after the weights are loaded.
"""

from __future__ import annotations

import torch

from foveate.models.interface import Memory, MemorySpec

RESERVE = 0.08  # share of a GPU's memory left for activations, graphs and the allocator's own slack


def joined(*specs: MemorySpec) -> MemorySpec:
    """What several models keep side by side; their names differ."""
    paged = tuple(spec for part in specs for spec in part.paged)
    state = tuple(spec for part in specs for spec in part.state)
    assert len({spec.name for spec in (*paged, *state)}) == len(paged) + len(state), "two tensors of one name"
    return MemorySpec(paged, state)


def allocate(spec: MemorySpec, pages: int, page_len: int, slots: int, device: str) -> Memory:
    """Memory for `pages` pages of `page_len` tokens and `slots` sequences, zero-filled, on `device`."""
    rows = {s.name: (pages, s.rows(page_len)) for s in spec.paged}
    return Memory(
        paged={s.name: torch.zeros(*rows[s.name], *s.shape, dtype=s.dtype, device=device) for s in spec.paged},
        state={s.name: torch.zeros(slots, *s.shape, dtype=s.dtype, device=device) for s in spec.state},
        page_len=page_len,
    )


def measured_kv_tokens(spec: MemorySpec, slots: int, page_len: int, device: str, beside: int = 0) -> int | None:
    """Tokens in pages that fit `device` beside what is loaded now and `beside` bytes that come later.

    None on a CPU, where a setting decides.
    """
    if device == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    usable = free - int(total * RESERVE) - slots * spec.slot_bytes() - beside
    return max(0, usable // max(1, spec.page_bytes(page_len))) * page_len
