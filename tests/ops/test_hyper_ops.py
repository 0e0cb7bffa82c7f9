"""Hyper-connections against their references, and what Sinkhorn's normalisation promises."""

from __future__ import annotations

import pytest
import torch

from foveate.ops.hyper import (
    Mixing,
    Site,
    gather_streams,
    head_streams,
    mix_of,
    mix_reference,
    return_streams,
    sinkhorn,
)

MIXING = Mixing(20, 1e-6, 1e-6)


def site(random: torch.Generator, streams: int, hidden: int, outputs: int) -> Site:
    into = torch.randn(streams * hidden, outputs, generator=random) * (streams * hidden) ** -0.5
    scale, base = torch.rand(outputs, generator=random) + 0.5, torch.randn(outputs, generator=random)
    return Site(into, scale, base)


@pytest.mark.parametrize("count", [2, 4, 5])
@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_a_mix_equals_its_reference(count: int, rounds: int) -> None:
    random = torch.Generator().manual_seed(count)
    streams, mixing = torch.randn(7, count, 24, generator=random), Mixing(rounds, 1e-6, 1e-6)
    weights = site(random, count, 24, count * (2 + count))
    got, want = mix_of(streams, weights, mixing), mix_reference(streams, weights, mixing)
    for one, other in ((got.pre, want.pre), (got.post, want.post), (got.comb, want.comb)):
        assert (one - other).abs().max() < 1e-5


def test_columns_end_at_one_and_rows_come_near() -> None:
    comb = torch.rand(9, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.05
    even = sinkhorn(comb, 20, 1e-6)
    assert (even.sum(1) - 1).abs().max() < 1e-5 and (even.sum(2) - 1).abs().max() < 1e-3
    assert (sinkhorn(comb, 1, 1e-6).sum(2) - 1).abs().max() > 1e-2, "one round leaves the rows uneven"


def test_streams_return_through_the_transposed_table() -> None:
    random = torch.Generator().manual_seed(1)
    streams, y = torch.randn(3, 4, 8, generator=random), torch.randn(3, 8, generator=random)
    mix = mix_of(streams, site(random, 4, 8, 24), MIXING)
    got = return_streams(streams, y, mix)
    for t in range(3):
        for k in range(4):
            want = mix.post[t, k] * y[t] + sum(mix.comb[t, j, k] * streams[t, j] for j in range(4))
            assert (got[t, k] - want).abs().max() < 1e-5


def test_gathering_and_the_head() -> None:
    random = torch.Generator().manual_seed(2)
    streams, weights = torch.randn(3, 4, 8, generator=random), site(random, 4, 8, 4)
    flat = streams.flatten(1)
    read = flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt() @ weights.into * weights.scale + weights.base
    pre = read.sigmoid() + 1e-6
    want = (pre.unsqueeze(-1) * streams).sum(1)
    assert (head_streams(streams, weights, MIXING) - want).abs().max() < 1e-5
    assert (gather_streams(streams, pre) - want).abs().max() < 1e-5


def test_streams_keep_their_type() -> None:
    random = torch.Generator().manual_seed(3)
    streams = torch.randn(2, 4, 8, generator=random).bfloat16()
    mix = mix_of(streams, site(random, 4, 8, 24), MIXING)
    assert mix.comb.dtype == torch.float32
    assert gather_streams(streams, mix.pre).dtype == torch.bfloat16
    assert return_streams(streams, streams[:, 0], mix).dtype == torch.bfloat16
