"""Attention kernels over scattered pages against attention written out, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.interpreter import DEVICE, close  # isort: skip - before any kernel
from foveate.ops import lanes, triton_attention
from foveate.ops.attention import attend_reference
from foveate.ops.lanes import Lanes, Runs
from tests.ops.test_triton_rows import DTYPES, drawn, made_lanes

HEADS, KV_HEADS, DIM = 6, 2, 24


def memory_of(at: Lanes, dtype: torch.dtype, heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """Random keys and values, NaN wherever no lane has a token."""
    made = []
    pages = int(at.pages.max()) + 1
    for seed in (3, 4):
        paged = torch.full((pages, at.page_len, heads, dim), float("nan"), dtype=dtype, device=DEVICE)
        for lane, past in enumerate(at.past_lens.tolist()):
            seen = past + int(at.starts[lane + 1] - at.starts[lane])
            index = torch.arange(seen, device=DEVICE)
            page = at.pages[lane, index // at.page_len].long()
            paged[page, index % at.page_len] = drawn(seen, heads, dim, dtype=dtype, seed=seed + 10 * lane)
        made.append(paged)
    return made[0], made[1]


def written_out(query: Tensor, gate: Tensor, memory: tuple[Tensor, Tensor], at: Lanes) -> Tensor:
    out = []
    for lane, past in enumerate(at.past_lens.tolist()):
        start, end = at.starts[lane : lane + 2].tolist()
        index = torch.arange(past + end - start, device=DEVICE)
        page = at.pages[lane, index // at.page_len].long()
        key, value = (paged[page, index % at.page_len].float() for paged in memory)
        out.append(attend_reference(query[start:end].float(), key, value, past))
    return torch.cat(out).flatten(1) * gate.float().sigmoid()


def runs_of(at: Lanes) -> Runs:
    cut = [(s, n) for s in range(len(at.past_lens)) for n in range(0, int(at.starts[s + 1] - at.starts[s]), 128)]
    nothing = torch.empty(0, dtype=torch.int32, device=DEVICE)
    return Runs(at, torch.tensor(cut[::-1], dtype=torch.int32, device=DEVICE), nothing, nothing)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("lens", "past_lens"),
    [
        ([1], [0]),
        ([1, 1, 1], [3, 0, 300]),
        ([3, 3], [5, 128]),
        ([2, 5, 1], [63, 64, 0]),
        ([17, 9], [40, 0]),
    ],
)
@pytest.mark.parametrize("sizes", [(HEADS, KV_HEADS, DIM), (4, 4, 32), (16, 1, 32)])
def test_few_queries(
    lens: list[int], past_lens: list[int], sizes: tuple[int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    at, tokens, (heads, kv_heads, dim) = made_lanes(lens, past_lens), sum(lens), sizes
    query, gate = drawn(tokens, heads, dim, dtype=dtype), drawn(tokens, heads * dim + 3, dtype=dtype, seed=1)[:, 3:]
    memory, out = memory_of(at, dtype, kv_heads, dim), torch.full_like(query.flatten(1), float("nan"))
    triton_attention.attend(query, gate, memory, at, out)
    want = written_out(query, gate, memory, at)
    close(out, want, tolerance)
    if len(set(lens)) == 1:
        lanes.attend(query, gate, memory, at, out)
        close(out, want, 2 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("lens", "past_lens"),
    [([5], [0]), ([130, 2, 64], [0, 100, 63]), ([200], [77])],
)
def test_many_queries(lens: list[int], past_lens: list[int], dtype: torch.dtype, tolerance: float) -> None:
    at, tokens = made_lanes(lens, past_lens), sum(lens)
    query, gate = drawn(tokens, HEADS, DIM, dtype=dtype), drawn(tokens, HEADS * DIM, dtype=dtype, seed=1)
    memory, out = memory_of(at, dtype, KV_HEADS, DIM), torch.full_like(query.flatten(1), float("nan"))
    triton_attention.attend_runs(query, gate, memory, runs_of(at), out)
    close(out, written_out(query, gate, memory, at), tolerance)


def test_passes_are_split_to_fill_the_device_and_no_further() -> None:
    assert [triton_attention._splits(n, 256) for n in (1, 4, 32, 64, 132, 264, 1000)] == [32, 32, 16, 8, 2, 1, 1]
    assert [triton_attention._splits(4, blocks) for blocks in (0, 1, 3, 16)] == [1, 1, 4, 16]
