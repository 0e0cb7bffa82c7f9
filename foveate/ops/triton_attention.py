"""Triton kernels of full attention over paged keys and values: few queries per sequence, and many.

Few (decoding, drafts under verification): the queries of a group's heads share one pass over their keys, and that pass
is split among programs whose parts are joined by a second kernel (arXiv 2311.01282). Who takes what is computed from
lengths on the device, so one recording serves any length. Many (prefill): blocks of queries with a running softmax
(arXiv 2205.14135). Both multiply by the sigmoid of the output gate at the end. Sums are float32; pages beyond a
sequence's own are never read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from foveate.ops.lanes import Lanes, Runs

BLOCK_LEN = 64  # keys taken at once
MOST_SPLITS = 32
LOG2_E = 1.4426950408889634  # scores are kept as powers of two: `exp2` is one instruction
WAVE = 264  # programs that keep a large GPU busy: two for each of 132 multiprocessors
FEW_WARPS, FEW_STAGES = 4, 2
FEW_ROWS = 64  # queries of a group taken at once, half as many in float32: what fits the shared memory of a program
MANY_WARPS, MANY_STAGES = 8, 2
QUERY_BLOCK = 128  # queries of a run taken at once; `Runs.blocks` are cut by it


@triton.jit
def _absorb(q, k, v, visible, best, total, mixed, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr):
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, axis=1))
    safe = higher
    if MASKED:  # a row that has seen nothing yet has no best score to subtract
        safe = tl.where(higher == float("-inf"), 0.0, higher)
    faded = tl.exp2(best - safe)
    shares = tl.exp2(scores - safe[:, None])
    total = total * faded + tl.sum(shares, axis=1)
    mixed = mixed * faded[:, None] + tl.dot(shares.to(v.dtype), v, input_precision=PRECISION)
    return higher, total, mixed


@triton.jit(
    do_not_specialize=["tokens", "pages_row", "splits"],
    do_not_specialize_on_alignment=["starts", "past_lens", "pages"],
)
def _few_kernel(
    query,
    keys,
    values,
    parts,
    weights,
    starts,
    past_lens,
    pages,
    query_row,
    pages_row,
    page_len,
    tokens,
    splits,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    lane = tl.program_id(0)
    kv_head = tl.program_id(1) // PIECES
    split = tl.program_id(2)
    first = tl.load(starts + lane)
    count = tl.load(starts + lane + 1) - first
    past = tl.load(past_lens + lane)
    seen = past + count
    row = tl.arange(0, ROWS)
    number = tl.program_id(1) % PIECES * PIECE + row // GROUP  # which token of the lane
    head = kv_head * GROUP + row % GROUP
    real = (row < PIECE * GROUP) & (number < count)
    at = tl.arange(0, WIDTH)
    inside = at < DIM
    token = (first + number).to(tl.int64)
    q = tl.load(
        query + token[:, None] * query_row + head[:, None] * DIM + at[None, :],
        mask=real[:, None] & inside[None, :],
        other=0.0,
    )
    share = tl.cdiv(tl.cdiv(seen, BLOCK), splits) * BLOCK
    begin = split * share
    end = tl.minimum(begin + share, seen)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(begin, end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        there = index < end
        page = tl.load(pages + lane.to(tl.int64) * pages_row + index // page_len, mask=there, other=0).to(tl.int64)
        slot = ((page * page_len + index % page_len) * KV_HEADS + kv_head) * DIM
        k = tl.load(keys + slot[None, :] + at[:, None], mask=there[None, :] & inside[:, None], other=0.0)
        v = tl.load(values + slot[:, None] + at[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        visible = there[None, :] & (index[None, :] <= past + number[:, None])
        best, total, mixed = _absorb(q, k, v, visible, best, total, mixed, scale, True, PRECISION)
    # A part that saw nothing weighs nothing and is never read.
    place = (split * tokens + token) * (KV_HEADS * GROUP) + head
    empty = total == 0.0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    weight = tl.where(empty, float("-inf"), best + tl.log2(tl.where(empty, 1.0, total)))
    tl.store(weights + place, weight, mask=real)
    tl.store(parts + place[:, None] * DIM + at[None, :], mixed, mask=(real & ~empty)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["tokens"])
def _join_kernel(
    parts,
    weights,
    gate,
    out,
    tokens,
    gate_row,
    out_row,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, WIDTH)
    inside = at < DIM
    split = tl.arange(0, SPLITS)
    place = (split * tokens + token) * HEADS + head
    weight = tl.load(weights + place)
    share = tl.exp2(weight - tl.max(weight, axis=0))
    share = share / tl.sum(share, axis=0)
    part = tl.load(
        parts + place[:, None] * DIM + at[None, :], mask=(weight > float("-inf"))[:, None] & inside[None, :], other=0.0
    )
    mixed = tl.sum(part * share[:, None], axis=0)
    g = tl.load(gate + token * gate_row + head * DIM + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * out_row + head * DIM + at, (mixed * tl.sigmoid(g)).to(out.dtype.element_ty), mask=inside)


def attend(query: Tensor, gate: Tensor, memory: tuple[Tensor, Tensor], lanes: Lanes, out: Tensor) -> None:
    """As `lanes.attend`, for lanes of any lengths."""
    tokens, heads, dim = query.shape
    sequences, kv_heads = len(lanes.past_lens), memory[0].shape[2]
    group, wide = heads // kv_heads, query.dtype != torch.bfloat16
    most = max(FEW_ROWS // (2 if wide else 1), triton.next_power_of_2(group))
    rows = min(most, max(16, triton.next_power_of_2(lanes.width * group)))
    piece = rows // group  # tokens of a lane
    pieces = triton.cdiv(lanes.width, piece)
    splits = _splits(sequences * kv_heads * pieces, lanes.pages.shape[1] * lanes.page_len // BLOCK_LEN)
    width = max(16, triton.next_power_of_2(dim))
    parts = torch.empty(splits, tokens, heads, dim, dtype=torch.float32, device=query.device)
    weights = torch.empty(splits, tokens, heads, dtype=torch.float32, device=query.device)
    _few_kernel[(sequences, kv_heads * pieces, splits)](
        query,
        *memory,
        parts,
        weights,
        lanes.starts,
        lanes.past_lens,
        lanes.pages,
        query.stride(0),
        lanes.pages.stride(0),
        lanes.page_len,
        tokens,
        splits,
        dim**-0.5 * LOG2_E,
        KV_HEADS=kv_heads,
        GROUP=group,
        DIM=dim,
        WIDTH=width,
        ROWS=rows,
        PIECE=piece,
        PIECES=pieces,
        BLOCK=BLOCK_LEN // 2 if wide else BLOCK_LEN,
        PRECISION="tf32x3",
        num_warps=FEW_WARPS,
        num_stages=FEW_STAGES,
    )
    _join_kernel[(tokens, heads)](
        parts,
        weights,
        gate,
        out,
        tokens,
        gate.stride(0),
        out.stride(0),
        HEADS=heads,
        DIM=dim,
        WIDTH=width,
        SPLITS=splits,
        num_warps=2,
    )


def _splits(programs: int, blocks: int) -> int:
    """Parts to split passes of at most `blocks` blocks into, a power of two, so that all programs fill the device."""
    splits = 1
    while splits < min(MOST_SPLITS, blocks) and programs * splits < WAVE:
        splits *= 2
    return splits


@triton.jit(do_not_specialize=["pages_row"], do_not_specialize_on_alignment=["blocks", "starts", "past_lens", "pages"])
def _many_kernel(
    query,
    keys,
    values,
    gate,
    out,
    blocks,
    starts,
    past_lens,
    pages,
    query_row,
    gate_row,
    out_row,
    pages_row,
    page_len,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # The heads of a group run next to one another: they read the same keys.
    head = tl.program_id(0)
    block = tl.program_id(1) // PARTS
    lane = tl.load(blocks + 2 * block)
    own = tl.load(blocks + 2 * block + 1) + tl.program_id(1) % PARTS * ROWS
    number = own + tl.arange(0, ROWS)
    first = tl.load(starts + lane)
    count = tl.load(starts + lane + 1) - first
    past = tl.load(past_lens + lane)
    real = number < count
    at = tl.arange(0, WIDTH)
    inside = at < DIM
    token = (first + number).to(tl.int64)
    here = real[:, None] & inside[None, :]
    q = tl.load(query + token[:, None] * query_row + head * DIM + at[None, :], mask=here, other=0.0)
    # A part behind the run's end does nothing.
    end = tl.where(own < count, past + tl.minimum(own + ROWS, count), 0)
    plain = tl.minimum(past + own + 1, end) // BLOCK * BLOCK  # up to here everybody sees everything
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    table = pages + lane.to(tl.int64) * pages_row
    for start in range(0, plain, BLOCK):
        index = start + tl.arange(0, BLOCK)
        page = tl.load(table + index // page_len).to(tl.int64)
        slot = ((page * page_len + index % page_len) * KV_HEADS + head // GROUP) * DIM
        k = tl.load(keys + slot[None, :] + at[:, None], mask=inside[:, None], other=0.0)
        v = tl.load(values + slot[:, None] + at[None, :], mask=inside[None, :], other=0.0)
        best, total, mixed = _absorb(q, k, v, real, best, total, mixed, scale, False, PRECISION)
    for start in range(plain, end, BLOCK):
        index = start + tl.arange(0, BLOCK)
        there = index < end
        page = tl.load(table + index // page_len, mask=there, other=0).to(tl.int64)
        slot = ((page * page_len + index % page_len) * KV_HEADS + head // GROUP) * DIM
        k = tl.load(keys + slot[None, :] + at[:, None], mask=there[None, :] & inside[:, None], other=0.0)
        v = tl.load(values + slot[:, None] + at[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        visible = there[None, :] & (index[None, :] <= past + number[:, None])
        best, total, mixed = _absorb(q, k, v, visible, best, total, mixed, scale, True, PRECISION)
    mixed = mixed / tl.where(real, total, 1.0)[:, None]
    g = tl.load(gate + token[:, None] * gate_row + head * DIM + at[None, :], mask=here, other=0.0).to(tl.float32)
    mixed *= tl.sigmoid(g)
    tl.store(out + token[:, None] * out_row + head * DIM + at[None, :], mixed.to(out.dtype.element_ty), mask=here)


def attend_runs(query: Tensor, gate: Tensor, memory: tuple[Tensor, Tensor], runs: Runs, out: Tensor) -> None:
    """As `lanes.attend`, for the many tokens of runs."""
    _, heads, dim = query.shape
    lanes, kv_heads = runs.lanes, memory[0].shape[2]
    wide = query.dtype != torch.bfloat16  # float32 tiles take twice the room
    parts = 4 if wide else 1
    _many_kernel[(heads, parts * len(runs.blocks))](
        query,
        *memory,
        gate,
        out,
        runs.blocks,
        lanes.starts,
        lanes.past_lens,
        lanes.pages,
        query.stride(0),
        gate.stride(0),
        out.stride(0),
        lanes.pages.stride(0),
        lanes.page_len,
        dim**-0.5 * LOG2_E,
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        DIM=dim,
        WIDTH=max(16, triton.next_power_of_2(dim)),
        ROWS=QUERY_BLOCK // parts,
        BLOCK=16 if wide else BLOCK_LEN,
        PARTS=parts,
        PRECISION="tf32x3",
        num_warps=MANY_WARPS,
        num_stages=1 if wide else MANY_STAGES,
    )
