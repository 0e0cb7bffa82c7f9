"""Row kernels against their references, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tests.support.interpreter import DEVICE, close  # isort: skip - before any kernel
from foveate.ops import lanes, layers, rope, triton_rows
from foveate.ops.lanes import HeadSizes, Lanes

# A GPU multiplies float32 in three passes of fewer bits.
DTYPES = [(torch.float32, 2e-6 if DEVICE == "cpu" else 2e-5), (torch.bfloat16, 6e-3)]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def made_lanes(lens: list[int], past_lens: list[int], page_len: int = 4, seed: int = 0, **extra: bool) -> Lanes:
    """Lanes on scattered pages; behind their own they have page 0, the spare one, and nobody has slot 0."""
    rng = random.Random(seed)
    need = [-(-(past + n) // page_len) for n, past in zip(lens, past_lens, strict=True)]
    own = rng.sample(range(1, 1 + 2 * sum(need)), sum(need))
    most = max(need) + 1
    rows = []
    for count in need:
        rows.append(own[:count] + [0] * (most - count))
        own = own[count:]

    def small(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    return Lanes(
        starts=small([sum(lens[:i]) for i in range(len(lens) + 1)]),
        past_lens=small(past_lens),
        pages=torch.tensor(rows, dtype=torch.int32, device=DEVICE),
        slots=small(rng.sample(range(1, 2 + 2 * len(lens)), len(lens))),
        owner=small([i for i, n in enumerate(lens) for _ in range(n)]),
        width=max(lens),
        page_len=page_len,
        **extra,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (3, 2560), (7, 100)])
def test_rms_norm(tokens: int, width: int, dtype: torch.dtype, tolerance: float) -> None:
    x, scale = drawn(tokens, width + 8, dtype=dtype)[:, :width], drawn(width, seed=1)
    close(triton_rows.rms_norm(x, scale, 1e-6), layers.rms_norm(x, scale, 1e-6), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("tokens", "inner"), [(1, 40), (5, 1500)])
def test_gated_product(tokens: int, inner: int, dtype: torch.dtype, tolerance: float) -> None:
    both = drawn(tokens, 2 * inner, dtype=dtype)
    gate, up = both.float().chunk(2, -1)
    close(triton_rows.gated_product(both), torch.nn.functional.silu(gate) * up, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(
    ("lens", "past_lens", "sizes", "half"),
    [
        ([1], [0], HeadSizes(4, 2, 32, 1e-6), 4),
        ([1, 1, 1], [7, 0, 31], HeadSizes(6, 1, 24, 1e-6), 12),
        ([3, 3], [5, 8], HeadSizes(4, 4, 16, 1e-6), 4),
        ([70], [2], HeadSizes(2, 1, 32, 1e-6), 4),
    ],
)
def test_place(
    lens: list[int], past_lens: list[int], sizes: HeadSizes, half: int, dtype: torch.dtype, tolerance: float
) -> None:
    at, tokens = made_lanes(lens, past_lens), sum(lens)
    mixed = drawn(tokens, (2 * sizes.heads + 2 * sizes.kv_heads) * sizes.dim, dtype=dtype)
    scale = drawn(sizes.heads + sizes.kv_heads, sizes.dim, seed=1)
    angles = drawn(tokens, 1, half, seed=2)
    rope = (angles.cos(), angles.sin())
    shape = (int(at.pages.max()) + 1, at.page_len, sizes.kv_heads, sizes.dim)
    got_memory, want_memory = ([torch.full(shape, 9.0, dtype=dtype, device=DEVICE) for _ in "kv"] for _ in "gw")
    want = lanes.place(mixed, scale, rope, (want_memory[0], want_memory[1]), at, sizes)
    got = triton_rows.place(mixed, scale, rope, (got_memory[0], got_memory[1]), at, sizes)
    close(got, want, tolerance)
    for a, b in zip(got_memory, want_memory, strict=True):
        close(a, b, tolerance)
        assert ((a != 9.0).flatten(2).all(-1) == (b != 9.0).flatten(2).all(-1)).all()  # nothing else was written


@pytest.mark.parametrize("tokens", [1, 5])
def test_rope_angles(tokens: int) -> None:
    positions = torch.randint(0, 262_144, (3, tokens), dtype=torch.int32).to(DEVICE)
    frequency, axes = rope.frequencies(1e7, 24).to(DEVICE), torch.tensor([0, 1, 2] * 4).to(DEVICE)
    want = rope.mrope_cos_sin(positions, frequency, axes)
    for got, one in zip(triton_rows.cos_sin(positions, frequency, axes), want, strict=True):
        assert got.is_contiguous() and (got - one).abs().max() < 2e-6


@pytest.mark.parametrize("width", [40, 4096, 9000])
def test_glance(width: int) -> None:
    logits = drawn(6, width)
    logits[1, width - 1] = float("inf")
    logits[2, width // 2] = float("-inf")
    logits[3, 0] = float("nan")
    logits[5, [3, width - 2]] = 99.0  # of equals the first
    got, want = triton_rows.glance(logits), lanes.glance(logits)
    assert got[1].tolist() == want[1].tolist() == [1, 0, 0, 0, 1, 1]
    assert got[0, [0, 4, 5]].tolist() == [*logits[[0, 4]].argmax(-1).tolist(), 3]
    blank = torch.full((2, width), float("nan"), device=logits.device)
    best, sound = triton_rows.glance(blank).tolist()
    assert max(best) < width and sound == [0, 0], "an id behind the end would be looked up in the embeddings"
    assert want[0, :5].tolist() == logits[:5].argmax(-1).tolist()
