"""Sampled answers keep their distribution: thousands of draws with and without speculation, chi-square over tokens."""

from __future__ import annotations

import random
from array import array

import pytest
import torch

from foveate.core.plan import Draw, Slice
from foveate.core.values import Sampling
from foveate.run.sampler import choose_row
from foveate.run.verify import settle

VOCAB, DRAWS = 8, 2000


def critical(freedom: int, sigma: float = 3.3) -> float:
    """About the 0.9995 quantile of chi-square (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + sigma * spread**0.5) ** 3


def logits_after(path: tuple[int, ...]) -> torch.Tensor:
    """A small model: what follows depends on all that came before."""
    gen = torch.Generator().manual_seed(sum((token + 1) * 31**i for i, token in enumerate(path)))
    return 1.5 * torch.randn(VOCAB, generator=gen)


def speculative(rng: random.Random, sampling: Sampling, tree: bool, count: int) -> tuple[int, ...]:
    """`count` tokens in bursts over random guesses, which know nothing of the draws."""
    out: tuple[int, ...] = ()
    while len(out) < count:
        size = rng.randint(0, 4)
        guesses = tuple(rng.randrange(VOCAB) for _ in range(size))
        parents = tuple(rng.randint(max(0, i - 2), i) for i in range(size)) if tree else ()
        paths: list[tuple[int, ...]] = [()]
        for number, token in enumerate(guesses):
            paths.append((*paths[parents[number] if tree else number], token))
        rows = torch.stack([logits_after(out + path) for path in paths])
        draw = Draw(sampling, len(out), out if sampling.needs_history else (), len(out))
        piece = Slice(1, 5, (0, *guesses), (array("q"),), (), 0, draft_len=size, draw=draw, parents=parents)
        ((result, path),) = settle([piece], rows)
        assert len(result.tokens) == len(path)
        out += result.tokens
    return out[:count]


def plain(sampling: Sampling, count: int) -> tuple[int, ...]:
    out: tuple[int, ...] = ()
    for index in range(count):
        draw = Draw(sampling, index, out if sampling.needs_history else (), index)
        out += (choose_row(logits_after(out), draw),)
    return out


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("wish", [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05, "presence_penalty": 0.7, "repetition_penalty": 1.2},
], ids=["plain", "truncated", "penalised"])  # fmt: skip
def test_chi_square(wish: dict[str, float], tree: bool) -> None:
    """Two samples with different seeds: equal in law. With the same seed they are the very same answers."""
    rng, counts = random.Random(7), [dict[tuple[int, ...], int](), dict[tuple[int, ...], int]()]
    for seed in range(DRAWS):
        one = speculative(rng, Sampling(**wish, seed=seed), tree, 2)
        two = plain(Sampling(**wish, seed=seed + DRAWS), 2)
        for count, sample in zip(counts, (one, two), strict=True):
            count[sample] = count.get(sample, 0) + 1
        if seed < 200:
            assert one == plain(Sampling(**wish, seed=seed), 2)
    cells = [key for key in {*counts[0], *counts[1]} if counts[0].get(key, 0) + counts[1].get(key, 0) >= 16]
    pairs = [(counts[0].get(key, 0), counts[1].get(key, 0)) for key in cells]
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    assert len(cells) > 6 and statistic < critical(len(cells) - 1), (statistic, len(cells))


def test_the_statistic_notices_a_bias() -> None:
    """Accepting a guess too readily, as `p >= 0.1` would, fails the same test."""
    rng, counts = random.Random(7), [[0] * VOCAB, [0] * VOCAB]
    chances = torch.softmax(logits_after(()), -1).tolist()
    for seed in range(DRAWS):
        guess = rng.randrange(VOCAB)
        drawn = choose_row(logits_after(()), Draw(Sampling(seed=seed), 0))
        counts[0][guess if chances[guess] >= 0.1 else drawn] += 1
        counts[1][choose_row(logits_after(()), Draw(Sampling(seed=seed + DRAWS), 0))] += 1
    pairs = [(a, b) for a, b in zip(*counts, strict=True) if a + b >= 16]
    assert sum((a - b) ** 2 / (a + b) for a, b in pairs) > critical(len(pairs) - 1)
