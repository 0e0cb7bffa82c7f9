"""Where the tokens of a mixed step live in paged memory.

Owns the arithmetic from page tables to flat slots, and `PagedLayout`: everything the attention layers of one forward
pass share, computed once. Lengths are Python integers throughout, so nothing is read back from the device. Knows
nothing of keys, values or heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reach:
    """One sequence of a step: its flat tokens [start, end), the pages it reads and how many tokens it sees.

    mask: [end - start, seen_len] bool, True where a token may look; None where all may (one token) or where plain
    causality says it (no past).
    """

    start: int
    end: int
    pages: Tensor
    seen_len: int
    mask: Tensor | None

    @property
    def query_len(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PagedLayout:
    """A step's paged memory: flat slots [tokens] to write to, and one `Reach` per sequence."""

    write_at: Tensor
    reaches: tuple[Reach, ...]


def lay_out(pages: Tensor, past_lens: tuple[int, ...], query_lens: tuple[int, ...], page_len: int) -> PagedLayout:
    """The layout of a step whose sequences have `past_lens` tokens in memory and add `query_lens`.

    pages: [sequences, most pages] int64; entries beyond a sequence's own length are never used.
    """
    reaches, start = [], 0
    for row, past_len, query_len in zip(pages, past_lens, query_lens, strict=True):
        seen_len = past_len + query_len
        mask = causal_mask(past_len, query_len, pages.device) if past_len and query_len > 1 else None
        reaches.append(Reach(start, start + query_len, row[: -(-seen_len // page_len)], seen_len, mask))
        start += query_len
    return PagedLayout(flat_slots(pages, past_lens, query_lens, page_len), tuple(reaches))


def flat_slots(pages: Tensor, past_lens: tuple[int, ...], query_lens: tuple[int, ...], page_len: int) -> Tensor:
    """Flat slots (page * page_len + offset) [tokens] of the new tokens, in batch order."""
    sequences = torch.arange(len(query_lens)).repeat_interleave(torch.tensor(query_lens))
    spans = zip(past_lens, query_lens, strict=True)
    indices = torch.cat([torch.arange(past_len, past_len + query_len) for past_len, query_len in spans])
    row, at = torch.stack([sequences, indices]).to(pages.device)
    return pages[row, at // page_len] * page_len + at % page_len


def causal_mask(past_len: int, query_len: int, device: torch.device) -> Tensor:
    """[query_len, past_len + query_len] bool: new token i sees everything up to past_len + i."""
    seen = torch.arange(past_len + query_len, device=device)
    return seen <= torch.arange(past_len, past_len + query_len, device=device)[:, None]


def gather_pages(paged: Tensor, pages: Tensor, length: int) -> Tensor:
    """The first `length` tokens of a sequence: paged [pages, page_len, ...] to [length, ...]."""
    return paged.index_select(0, pages).flatten(0, 1)[:length]
