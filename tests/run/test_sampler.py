"""Sampling: the distribution asked for, draws that depend on seed and index only, penalties that do their sums."""

from __future__ import annotations

import math

import pytest
import torch

from foveate.core.plan import Draw
from foveate.core.values import Sampling
from foveate.run.sampler import choose, uniform


def draw_many(logits: torch.Tensor, sampling: Sampling, count: int) -> torch.Tensor:
    """Frequencies of `count` draws from one row of logits."""
    draws = [Draw(sampling, index) for index in range(count)]
    tokens = [token for token, _ in choose(logits.expand(count, -1), draws)]
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[-1]) / count


def chi_square(frequencies: torch.Tensor, expected: torch.Tensor, count: int) -> float:
    support = expected > 0
    assert frequencies[~support].sum() == 0, "a token outside the support was drawn"
    return float((count * (frequencies - expected)[support] ** 2 / expected[support]).sum())


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=3),
        Sampling(temperature=0.6, seed=4),
        Sampling(temperature=1.3, top_k=4, seed=5),
        Sampling(temperature=1.0, top_p=0.7, seed=6),
        Sampling(temperature=1.0, min_p=0.2, seed=7),
        Sampling(temperature=0.9, top_k=6, top_p=0.8, min_p=0.05, seed=8),
    ],
)
def test_frequencies_match_the_truncated_softmax(sampling: Sampling) -> None:
    logits = torch.tensor([1.2, 0.3, -0.5, 2.0, 0.0, 0.31, -3.0, 1.1])
    probs = torch.softmax(logits.double() / sampling.temperature, -1)
    # An independent statement of the rules, token by token.
    ranked = sorted(range(len(probs)), key=lambda i: -probs[i])
    kept, before = [], 0.0
    for rank, token in enumerate(ranked):
        inside_k = not sampling.top_k or rank < sampling.top_k
        inside_p = before < sampling.top_p or sampling.top_p == 1
        if inside_k and inside_p and probs[token] >= sampling.min_p * probs[ranked[0]]:
            kept.append(token)
        before += float(probs[token])
    expected = torch.zeros_like(probs)
    expected[kept] = probs[kept] / probs[kept].sum()
    count = 8000
    # 99.99 % quantile of chi-square with 7 degrees of freedom; the seed is fixed, so this never flickers.
    assert chi_square(draw_many(logits, sampling, count).double(), expected, count) < 29.9


def test_a_draw_depends_on_seed_and_index_only() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 50)
    draws = [Draw(Sampling(seed=seed), index) for seed, index in [(1, 0), (1, 1), (2, 0), (1, 0), (9, 7)]]
    together = [token for token, _ in choose(logits, draws)]
    alone = [choose(logits[i : i + 1], [draws[i]])[0][0] for i in range(5)]
    assert together == alone
    assert uniform(1, 0) != uniform(1, 1) != uniform(2, 0)


def test_greedy_and_tiny_temperatures_take_the_maximum() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.1, -1.0]])
    for temperature in (0.0, 1e-4, 1e-9):
        assert choose(logits, [Draw(Sampling(temperature=temperature), 0)])[0][0] == 2


def test_penalties_bias_and_forbidden_ids() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0, -1.0]])

    def greedy(
        history: tuple[int, ...] = (), output_len: int = 0, forbidden: frozenset[int] = frozenset(), **wish
    ) -> int:
        return choose(logits, [Draw(Sampling(temperature=0, **wish), 0, history, output_len, forbidden)])[0][0]

    assert greedy() == 2
    assert greedy(history=(2,), repetition_penalty=2.0) == 1  # 3 / 2 < 2: prompt tokens count
    assert greedy(history=(2,), output_len=0, presence_penalty=2.0) == 2  # not yet in the output
    assert greedy(history=(0, 2), output_len=1, presence_penalty=1.5) == 1
    assert greedy(history=(2, 2, 2), output_len=3, frequency_penalty=0.5) == 1
    assert greedy(logit_bias=((3, 100.0),)) == 3
    assert greedy(forbidden=frozenset({2, 1})) == 0
    assert choose(logits, [Draw(Sampling(temperature=0), 0)])[0][0] == 2, "the model's logits were changed in place"


def test_logprobs_are_the_models_own() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    token, logprob = choose(logits, [Draw(Sampling(temperature=0, logprobs=2, logit_bias=((0, 50.0),)), 0)])[0]
    assert token == 0 and logprob is not None
    total = math.log(sum(math.exp(x) for x in (1, 2, 3)))
    assert logprob.logprob == pytest.approx(1 - total, abs=1e-6)
    assert [t for t, _ in logprob.top] == [2, 1]
    assert logprob.top[0][1] == pytest.approx(3 - total, abs=1e-6)
