"""Compressed entries and rings: the same entries however a sequence is cut, in the pages of their last tokens."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveate.ops.compress import carried_from, compress, compress_reference, entry_rows, plan_windows
from foveate.ops.rings import Stretch, plan_keep, ring_places


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("ratio", [1, 3, 4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_entries_do_not_depend_on_cuts(overlap: bool, ratio: int, seed: int) -> None:
    """Three sequences in steps of random lengths, their open rows in rings, against one window after another."""
    rng, dim = random.Random(seed), 6
    noise, wide = torch.Generator().manual_seed(seed), dim * (2 if overlap else 1)
    rows = [torch.randn(rng.randint(1, 50), 2 * wide, generator=noise) for _ in range(3)]
    length = ratio * (2 if overlap else 1)
    ring = torch.full((5, length, 2 * wide), float("nan"))
    slots, done = torch.tensor([4, 0, 2]), [0, 0, 0]
    entries = torch.full((3, 64, dim), float("nan"))
    while any(at < len(one) for at, one in zip(done, rows, strict=True)):
        work = [s for s in range(3) if done[s] < len(rows[s]) and rng.random() < 0.8]
        if not work:
            continue
        new = [Stretch(n, done[s], min(len(rows[s]), done[s] + rng.randint(1, 11))) for n, s in enumerate(work)]
        held = [Stretch(part.sequence, carried_from(part.start_at, ratio, overlap), part.start_at) for part in new]
        at = [torch.arange(part.end_at // ratio) + 64 * s for part, s in zip(new, work, strict=True)]
        windows, here = plan_windows(held, new, ratio, overlap, at), slots[work]
        fresh = torch.cat([rows[s][part.start_at : part.end_at] for part, s in zip(new, work, strict=True)])
        carried = ring.flatten(0, 1)[ring_places(here, held, length)]
        entries.flatten(0, 1)[windows.write_at] = compress(torch.cat([carried, fresh]), windows)
        starts = [sum(len(part) for part in new[:n]) for n in range(len(new))]
        plan_keep(here, new, starts, length).write(ring, fresh)
        for part, s in zip(new, work, strict=True):
            done[s] = part.end_at
    for s, one in enumerate(rows):
        want = compress_reference(one[:, :wide], one[:, wide:], ratio, overlap)
        assert len(want) == len(one) // ratio
        assert len(want) == 0 or (entries[s, : len(want)] - want).abs().max() < 1e-6
        assert entries[s, len(want) :].isnan().all()


@given(st.integers(1, 140), st.integers(1, 40), st.integers(0, 300))
def test_every_entry_has_a_row_of_its_own(ratio: int, page_len: int, length: int) -> None:
    """In the page of its window's last token, so that it exists as soon as that token may be written."""
    pages = torch.randperm(length // page_len + 1, generator=torch.Generator().manual_seed(length))
    rows_of_page = -(-page_len // ratio)
    rows = entry_rows(pages, length // ratio, ratio, page_len).tolist()
    assert len(set(rows)) == len(rows)
    for number, row in enumerate(rows):
        last = (number + 1) * ratio - 1
        assert row // rows_of_page == pages[last // page_len]


def test_a_ring_keeps_the_last_rows_of_each() -> None:
    ring = torch.zeros(3, 4)
    slots = torch.tensor([2, 0])
    keep = plan_keep(slots, [Stretch(0, 5, 11), Stretch(1, 0, 2)], [0, 6], 4)
    keep.write(ring.unsqueeze(-1), torch.arange(8.0).unsqueeze(-1))
    assert ring.tolist() == [[6, 7, 0, 0], [0, 0, 0, 0], [3, 4, 5, 2]]  # positions 8 9 10 7 stand at 0 1 2 3
    assert ring_places(slots, [Stretch(0, 7, 11)], 4).tolist() == [11, 8, 9, 10]
