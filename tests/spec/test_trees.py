"""Growing trees: the chain whole, then best first; parents before children; never more than the budget."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from foveate.run.draft import last_occurrence
from foveate.run.tree import grow
from foveate.sched.request import depths


def options_of(seed: int, depth: int, width: int) -> list[list[tuple[int, float]]]:
    rng = random.Random(seed)
    out = []
    for _ in range(depth):
        weights = sorted((rng.random() ** 3 for _ in range(width)), reverse=True)
        tokens = rng.sample(range(100), width)
        out.append([(token, math.log(weight / sum(weights))) for token, weight in zip(tokens, weights, strict=True)])
    return out


def paths_of(tokens: tuple[int, ...], parents: tuple[int, ...]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize("seed", range(8))
def test_best_first_behind_a_whole_chain(seed: int) -> None:
    depth, width = 4, 4
    options, rng = options_of(seed, depth, width), random.Random(seed)
    chain = [step[0][0] for step in options] if seed % 2 else [rng.choice(step)[0] for step in options]
    for budget in (0, 1, 3, 4, 9, 20, 400):
        tokens, parents = grow(chain, options, budget)
        assert len(tokens) <= budget and all(parent <= i for i, parent in enumerate(parents))
        paths = paths_of(tokens, parents)
        assert len(set(paths)) == len(paths), "the same path twice"
        assert paths[: min(budget, depth)] == [tuple(chain[: i + 1]) for i in range(min(budget, depth))]
        worth = [sum(dict(options[d])[token] for d, token in enumerate(path)) for path in paths[depth:]]
        assert worth == sorted(worth, reverse=True), "not best first"
        if budget == 400:
            assert len(paths) == sum(width**d for d in range(1, depth + 1)), "not the whole tree in the end"
        elif len(paths) > depth:
            rest = set(itertools.chain.from_iterable(
                itertools.product(*([t for t, _ in step] for step in options[:d])) for d in range(1, depth + 1)
            )) - set(paths)  # fmt: skip
            best_left = max(sum(dict(options[d])[token] for d, token in enumerate(path)) for path in rest)
            assert best_left <= min(worth) + 1e-12, "something better was left out"


def test_any_beginning_is_a_tree() -> None:
    tokens, parents = grow([1, 2, 3], options_of(0, 3, 4), 12)
    for count in range(len(tokens)):
        assert len(depths(parents[:count])) == count


def test_last_occurrence() -> None:
    assert last_occurrence((1, 2, 3, 1, 2), 2) == 2
    assert last_occurrence((1, 2, 1, 2, 1, 2), 2) == 4, "overlapping ones count, the last wins"
    assert last_occurrence((1, 2, 3), 2) is None and last_occurrence((1,), 2) is None
    assert last_occurrence((5, 5, 5), 2) == 2
    assert last_occurrence((256, 1, 0, 1), 1) == 2, "a match inside the bytes of a number is none"
