"""Drafters that know the truth and are wrong on purpose, so that acceptance of every length occurs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from foveate.core.plan import DraftGuess, DraftWish
from foveate.models.drafting import Seen
from foveate.models.interface import Capture, Memory, MemorySpec


class Knowing:
    """Proposes the true next token with probability `right`, as a chain or with siblings as a tree.

    truth: each uid's answer; guesses beyond its end are random. Also checks that it sees every standing token once, in
    order, with the target's features, and never one that was rejected.
    """

    name, lookback, most_len = "knowing", 1, 8

    def __init__(self, truth: Sequence[Sequence[int]], right: float = 0.7, seed: int = 0, tree: bool = False) -> None:
        self.truth, self.right, self.tree = truth, right, tree
        self.rng = random.Random(seed)
        self.capture = Capture((0, 2), final=True)
        self.seen: dict[int, list[int]] = {}  # by slot

    def memory_spec(self) -> MemorySpec:
        return MemorySpec((), ())

    def observe(self, seen: Seen, memory: Memory) -> None:
        assert seen.features is not None and len(seen.features) == len(seen.ids) == sum(seen.lens)
        assert seen.final is not None and seen.features.isfinite().all()
        start = 0
        for slot, past_len, length in zip(seen.slots.tolist(), seen.past_lens, seen.lens, strict=True):
            tokens = seen.ids[start : start + length].tolist()
            start += length
            known = self.seen.get(slot, []) if past_len else []
            assert past_len == len(known), "a gap, or tokens that did not stand"
            self.seen[slot] = known + tokens

    def propose(self, wishes: Sequence[DraftWish], memory: Memory) -> list[DraftGuess]:
        return [self._guess(wish) for wish in wishes]

    def _guess(self, wish: DraftWish) -> DraftGuess:
        assert len(self.seen[wish.state_slot]) == wish.start_at
        length, at = self.rng.randint(0, wish.draft_len), wish.draw.index
        answer = list(self.truth[wish.uid][at : at + length])
        answer += [self.rng.randrange(256) for _ in range(length - len(answer))]
        if not self.tree:
            return DraftGuess(wish.uid, tuple(self._maybe(token) for token in answer))
        tokens, parents, parent = list[int](), list[int](), 0
        for token in answer:  # the true token stands among its siblings, or nowhere
            siblings = [self.rng.randrange(256) for _ in range(self.rng.randint(0, 2))] + [self._maybe(token)]
            self.rng.shuffle(siblings)
            grown = [len(tokens) + number for number in range(1, len(siblings) + 1)]
            tokens += siblings
            parents += [parent] * len(siblings)
            parent = self.rng.choice(grown) if self.rng.random() < 0.3 else grown[_place(siblings, token)]
        return DraftGuess(wish.uid, tuple(tokens), tuple(parents))

    def _maybe(self, token: int) -> int:
        return token if self.rng.random() < self.right else self.rng.randrange(256)


def _place(siblings: list[int], token: int) -> int:
    return siblings.index(token) if token in siblings else 0
