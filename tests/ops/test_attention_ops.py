"""Paged and segmented attention against the same written out."""

from __future__ import annotations

import pytest
import torch

from foveate.ops.attention import attend_paged, attend_reference, attend_segments, write_paged
from foveate.ops.pages import flat_slots, gather_pages, lay_out

PAGE_LEN, KV_HEADS, DIM = 4, 2, 8


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize(
    ("past_lens", "query_lens"),
    [((0,), (9,)), ((7,), (1,)), ((5, 0, 12), (1, 1, 1)), ((5, 0, 3, 8, 16), (1, 6, 5, 4, 1))],
)
def test_paged_equals_the_reference(group: int, past_lens: tuple[int, ...], query_lens: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(0)
    totals = [past + new for past, new in zip(past_lens, query_lens, strict=True)]
    keys, values = (torch.full((24, PAGE_LEN, KV_HEADS, DIM), float("nan")) for _ in range(2))
    free = torch.randperm(24, generator=random).tolist()
    pages = torch.zeros(len(totals), 5, dtype=torch.int64)
    whole = []
    for s, total in enumerate(totals):
        own = [free.pop() for _ in range(-(-total // PAGE_LEN))]
        pages[s, : len(own)] = torch.tensor(own)
        k, v = (torch.randn(total, KV_HEADS, DIM, generator=random) for _ in range(2))
        whole.append((k, v))
        everything = flat_slots(pages[s : s + 1], (0,), (total,), PAGE_LEN)
        write_paged(keys, everything, k)
        write_paged(values, everything, v)
    query = torch.randn(sum(query_lens), KV_HEADS * group, DIM, generator=random)
    got = attend_paged(query, keys, values, lay_out(pages, past_lens, query_lens, PAGE_LEN))
    parts = zip(query.split(query_lens), whole, past_lens, strict=True)
    want = torch.cat([attend_reference(q, k, v, past) for q, (k, v), past in parts])
    assert (got - want).abs().max() < 1e-6


def test_flat_slots_walk_through_the_page_table() -> None:
    pages = torch.tensor([[7, 2, 0], [5, 0, 0]])
    assert flat_slots(pages, (3, 0), (3, 2), PAGE_LEN).tolist() == [31, 8, 9, 20, 21]


def test_gathered_pages_stop_at_the_length() -> None:
    paged = torch.arange(12.0).view(3, 4, 1)
    assert gather_pages(paged, torch.tensor([2, 0]), 6)[:, 0].tolist() == [8, 9, 10, 11, 0, 1]


def test_segments_do_not_see_each_other() -> None:
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(12, 3, DIM, generator=random) for _ in range(3))
    got = attend_segments(q, k, v, (5, 1, 6))
    want = [attend_reference(*parts, None) for parts in zip(*(x.split((5, 1, 6)) for x in (q, k, v)), strict=True)]
    assert (got - torch.cat(want)).abs().max() < 1e-6
