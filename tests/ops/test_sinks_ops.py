"""Attention over shared rows with sinks, the choice of rows, and pairwise rope, against their references."""

from __future__ import annotations

import math

import pytest
import torch

from foveate.ops import sinks
from foveate.ops.sinks import attend_reference, attend_shared, best_rows, index_scores
from foveate.ops.yarn import Yarn, cos_sin, rotate_tail_, rotate_tail_reference, yarn_frequencies


@pytest.mark.parametrize("most", [1, 100, 2**25])
def test_attention_equals_its_reference_in_blocks_of_any_size(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "MOST_SCORES", most)
    noise = torch.Generator().manual_seed(0)
    query, rows = torch.randn(5, 3, 8, generator=noise), torch.randn(11, 8, generator=noise)
    sink, seen = torch.randn(3, generator=noise), torch.rand(5, 11, generator=noise) < 0.5
    got = attend_shared(query, rows, seen, sink)
    assert (got - attend_reference(query, rows, seen, sink)).abs().max() < 1e-6
    everything = attend_shared(query, rows, None, sink)
    assert (everything - attend_reference(query, rows, torch.ones_like(seen), sink)).abs().max() < 1e-6


def test_a_sink_takes_weight_and_gives_nothing() -> None:
    query, rows = torch.zeros(1, 1, 4), torch.ones(3, 4)
    assert torch.allclose(attend_shared(query, rows, None, torch.tensor([0.0])), torch.full((1, 1, 4), 0.75))
    assert attend_shared(query, rows, None, torch.tensor([80.0])).abs().max() < 1e-30
    assert torch.equal(attend_shared(query, rows, torch.zeros(1, 3, dtype=torch.bool), torch.zeros(1)), query)


@pytest.mark.parametrize("most", [1, 2**25])
def test_index_scores(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "MOST_SCORES", most)
    noise = torch.Generator().manual_seed(1)
    query, rows = torch.randn(4, 3, 8, generator=noise), torch.randn(6, 8, generator=noise)
    weights = torch.randn(4, 3, generator=noise)
    got = index_scores(query, rows, weights)
    for t in range(4):
        for w in range(6):
            want = sum(weights[t, h] * 3**-0.5 * torch.relu(query[t, h] @ rows[w]) * 8**-0.5 for h in range(3))
            assert abs(got[t, w] - want) < 1e-5


def test_the_best_rows_are_the_best_and_the_first_of_equals() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0], [5.0, 1.0, 2.0, 9.0, 9.0]])
    ready = torch.tensor([[True] * 5, [True, False, True, True, True], [True, True, True, False, False]])
    got = best_rows(scores, ready, 2)
    assert got.tolist() == [
        [False, True, True, False, False],
        [True, False, True, False, False],
        [True, False, True, False, False],
    ]
    assert best_rows(scores, ready, 4)[2].tolist() == ready[2].tolist(), "fewer are ready than may be chosen"
    assert best_rows(scores, ready, 5) is ready


def test_a_choice_does_not_depend_on_what_comes_later() -> None:
    noise = torch.Generator().manual_seed(2)
    scores = torch.randint(0, 3, (20, 60), generator=noise).float()
    ready = torch.arange(60) < torch.arange(20)[:, None] * 2
    want = best_rows(scores, ready, 5)
    for count in (45, 50, 60):
        assert torch.equal(best_rows(scores[:, :count], ready[:, :count], 5), want[:, :count])


def test_the_tail_turns_in_pairs_and_back() -> None:
    noise = torch.Generator().manual_seed(3)
    x = torch.randn(6, 2, 12, generator=noise)
    cos, sin = cos_sin(torch.arange(6) * 37, yarn_frequencies(1e4, 8, None))
    turned = rotate_tail_(x.clone(), cos, sin)
    assert (turned - rotate_tail_reference(x, cos, sin)).abs().max() < 1e-6
    assert torch.equal(turned[..., :4], x[..., :4])
    assert (rotate_tail_(turned, cos, -sin) - x).abs().max() < 1e-6


def test_yarn_stretches_the_slow_pairs_only() -> None:
    """The released settings: pairs below 15 as they are, from 25 on sixteen times slower."""
    yarn = Yarn(16.0, 65536, 32.0, 1.0)
    plain, stretched = yarn_frequencies(160000.0, 64, None), yarn_frequencies(160000.0, 64, yarn)
    ratio = plain / stretched
    assert torch.allclose(ratio[:16], torch.ones(16)) and torch.allclose(ratio[25:], torch.full((7,), 16.0))
    assert (ratio[16:25].diff() > 0).all()
    assert plain[3] == pytest.approx(160000.0 ** (-6 / 64)) and math.isclose(float(plain[0]), 1.0)
