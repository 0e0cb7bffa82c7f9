"""Grows a tree of guesses from a chain and the alternatives at each depth, under a budget of tokens.

The chain goes in first, whole, because greedy acceptance follows it furthest; then, best first by the probability of
the whole path, the next alternative at a node's own depth and the best token below it (DDTree). Parents stand before
their children, so that any prefix of the result is a tree too. Numbers only; knows no model.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import count

Option = tuple[int, float]  # a token and its log-probability


def grow(
    chain: Sequence[int], options: Sequence[Sequence[Option]], budget: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens and parents (as in `core.plan.Slice`) of at most `budget` guesses; options[d] are best first."""
    chain = chain[:budget]
    tokens, parents = list(chain), list(range(len(chain)))
    order, heap = count(), list[tuple[float, int, int, int, int, float]]()
    # An entry offers the option `rank` of `depth` below node `parent`, whose path has log-probability `above`.

    def offer(parent: int, depth: int, rank: int, above: float) -> None:
        taken = chain[depth] if depth < len(chain) and parent == depth else None
        while depth < len(options) and rank < len(options[depth]):
            token, logprob = options[depth][rank]
            if token != taken and logprob > -math.inf:
                return heapq.heappush(heap, (-above - logprob, next(order), parent, depth, rank, above))
            rank += 1

    above = 0.0
    for depth, token in enumerate(chain):
        offer(depth, depth, 0, above)
        above += dict(options[depth]).get(token, options[depth][-1][1]) if depth < len(options) else 0.0
    offer(len(chain), len(chain), 0, above)
    while heap and len(tokens) < budget:
        cost, _, parent, depth, rank, above = heapq.heappop(heap)
        tokens.append(options[depth][rank][0])
        parents.append(parent)
        offer(parent, depth, rank + 1, above)
        offer(len(tokens), depth + 1, 0, -cost)
    return tuple(tokens), tuple(parents)
