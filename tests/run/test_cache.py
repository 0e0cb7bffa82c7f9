"""Memory of rows that come once in so many tokens: what a page holds, and how many tokens fit."""

from __future__ import annotations

import pytest
import torch

from foveate.models.interface import MemorySpec, PagedSpec, StateSpec
from foveate.run.cache import RESERVE, allocate, joined, measured_kv_tokens

KEYS = PagedSpec("keys", (2, 3), torch.float32)
ENTRIES = PagedSpec("entries", (5,), torch.bfloat16, every=4)
RARE = PagedSpec("rare", (5,), torch.bfloat16, every=128)
SPEC = MemorySpec((KEYS, ENTRIES, RARE), (StateSpec("ring", (7,), torch.float32),))


@pytest.mark.parametrize(
    ("page_len", "rows"), [(1, (1, 1, 1)), (32, (32, 8, 1)), (34, (34, 9, 1)), (256, (256, 64, 2))]
)
def test_a_page_has_room_for_every_row_that_may_end_in_it(page_len: int, rows: tuple[int, int, int]) -> None:
    memory = allocate(SPEC, 3, page_len, 2, "cpu")
    assert tuple(memory.paged[spec.name].shape[:2] for spec in SPEC.paged) == tuple((3, count) for count in rows)
    assert memory.state["ring"].shape == (2, 7)
    total = sum(tensor.numel() * tensor.element_size() for tensor in memory.paged.values())
    assert total == 3 * SPEC.page_bytes(page_len)


def test_bytes_of_a_token_are_an_average() -> None:
    assert SPEC.token_bytes() == 24 + 3 + 1
    assert SPEC.page_bytes(128) == 128 * 24 + 32 * 10 + 10


def test_measured_tokens_fill_whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured_kv_tokens(SPEC, 2, 32, "cpu") is None
    free, total = 1_000_000, 2_000_000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    got = measured_kv_tokens(SPEC, 2, 32, "cuda:0")
    usable = free - int(total * RESERVE) - 2 * SPEC.slot_bytes()
    assert got == usable // SPEC.page_bytes(32) * 32 and got % 32 == 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, total))
    assert measured_kv_tokens(SPEC, 2, 32, "cuda:0") == 0


def test_two_models_keep_side_by_side() -> None:
    other = MemorySpec((PagedSpec("draft.keys", (1,), torch.float32),), ())
    assert [spec.name for spec in joined(SPEC, other).paged] == ["keys", "entries", "rare", "draft.keys"]
    with pytest.raises(AssertionError, match="one name"):
        joined(SPEC, SPEC)
