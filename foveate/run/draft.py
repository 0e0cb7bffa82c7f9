"""Drafters as the runner sees them: n-gram lookup without weights, and draft models with their picks and trees.

Owns the translation between wishes and guesses of the plan and the tensors of a draft model. A sampled request is
guessed for with the same random number that its own draw will use, so that a drafter which agrees with the target
agrees with its draws too. Decides nothing: how much is guessed for whom comes with the wish.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from foveate.core.plan import DraftGuess, DraftWish, Draw
from foveate.models.drafting import Asked, DraftModel, Pick, Seen
from foveate.models.interface import Capture, Memory, MemorySpec
from foveate.run.sampler import GREEDY_BELOW, choose_row
from foveate.run.tree import grow

PICK_AMONG = 64  # a sampled guess is drawn from so many best tokens: a guess need not be exact


class Drafter(Protocol):
    """Guesses the next tokens of many requests at once."""

    name: str
    capture: Capture  # what it reads of the target
    lookback: int  # tokens that a wish must bring
    most_len: int  # tokens it can guess along one path

    def memory_spec(self) -> MemorySpec: ...

    def observe(self, seen: Seen, memory: Memory) -> None:
        """Take tokens that stand into the context of their sequences."""
        ...

    def propose(self, wishes: Sequence[DraftWish], memory: Memory) -> list[DraftGuess]:
        """A guess per wish, empty where there is nothing to guess from."""
        ...


class NgramDrafter:
    """Guesses that what followed the last tokens before will follow again. Needs no weights and no memory."""

    name = "ngram"
    capture = Capture()

    def __init__(self, most_len: int = 8, longest: int = 4, shortest: int = 2, lookback: int = 8192) -> None:
        """longest, shortest: tokens of the suffix that must have occurred before; the longest found counts."""
        self.most_len, self.lookback = most_len, lookback
        self._sizes = range(longest, shortest - 1, -1)

    def memory_spec(self) -> MemorySpec:
        return MemorySpec((), ())

    def observe(self, seen: Seen, memory: Memory) -> None:
        """Wishes bring all it needs."""

    def propose(self, wishes: Sequence[DraftWish], memory: Memory) -> list[DraftGuess]:
        return [DraftGuess(wish.uid, self._guess(wish.tail, wish.draft_len)) for wish in wishes]

    def _guess(self, tail: tuple[int, ...], draft_len: int) -> tuple[int, ...]:
        for size in self._sizes:
            at = last_occurrence(tail, size)
            if at is not None:
                period = len(tail) - at
                return tuple(tail[at + i % period] for i in range(draft_len))
        return ()


def last_occurrence(tokens: Sequence[int], size: int) -> int | None:
    """Where the last `size` tokens occurred before for the last time, as the index behind them; None if never."""
    if len(tokens) <= size:
        return None
    data = array("q", tokens)
    raw, width = data.tobytes(), data.itemsize
    suffix, end = raw[-size * width :], len(raw) - width
    while (found := raw.rfind(suffix, 0, end)) >= 0:
        if found % width == 0:
            return found // width + size
        end = found + len(suffix) - 1
    return None


class ModelDrafter:
    """A draft model with the picks of greedy and sampled requests, as chains or grown to trees."""

    lookback = 1

    def __init__(self, name: str, model: DraftModel, device: str) -> None:
        self.name, self._model, self._device = name, model, device
        self.capture, self.most_len = model.capture, model.most_len

    def memory_spec(self) -> MemorySpec:
        return self._model.memory_spec()

    def observe(self, seen: Seen, memory: Memory) -> None:
        self._model.observe(seen, memory)

    def propose(self, wishes: Sequence[DraftWish], memory: Memory) -> list[DraftGuess]:
        guesses = self._model.propose(self._asked(wishes), memory, _picker(wishes))
        chains, confidence = guesses.tokens.tolist(), guesses.confidence.tolist()
        known = [True] * len(wishes) if guesses.known is None else guesses.known.tolist()
        chains, confidence = ([one if has else [] for one, has in zip(rows, known, strict=True)]
                              for rows in (chains, confidence))  # fmt: skip
        if all(wish.budget <= wish.draft_len for wish in wishes):
            return [
                DraftGuess(wish.uid, tuple(chain[: wish.draft_len]), (), tuple(sure[: wish.draft_len]))
                for wish, chain, sure in zip(wishes, chains, confidence, strict=True)
            ]
        ids, logprobs = guesses.ids.tolist(), guesses.logprobs.tolist()
        return [
            _grown(wish, chain, [list(zip(*pair, strict=True)) for pair in zip(one, two, strict=True)] if has else [])
            for wish, chain, one, two, has in zip(wishes, chains, ids, logprobs, known, strict=True)
        ]

    def _asked(self, wishes: Sequence[DraftWish]) -> Asked:
        draft_len = max(wish.draft_len for wish in wishes)
        most_pages = max(len(wish.pages) for wish in wishes)
        pages = [[*wish.pages, *[0] * (most_pages - len(wish.pages))] for wish in wishes]
        positions = [[_extended(axis, draft_len + 1) for wish in wishes for axis in [wish.positions[i]]]
                     for i in range(len(wishes[0].positions))]  # fmt: skip
        anchors, slots = [wish.tail[-1] for wish in wishes], [wish.state_slot for wish in wishes]
        return Asked(
            anchors=torch.tensor(anchors, device=self._device),
            past_lens=tuple(wish.start_at for wish in wishes),
            positions=torch.tensor(positions, device=self._device),
            pages=torch.tensor(pages, device=self._device),
            slots=torch.tensor(slots, device=self._device),
            draft_len=draft_len,
        )


def _extended(axis: array[int], length: int) -> list[int]:
    """Positions of `length` indices, where the axis says fewer; behind a prompt they count on by one."""
    return [axis[i] if i < len(axis) else axis[-1] + i + 1 - len(axis) for i in range(length)]


def _grown(wish: DraftWish, chain: list[int], options: list[list[tuple[int, float]]]) -> DraftGuess:
    depth = wish.draft_len
    return DraftGuess(wish.uid, *grow(chain[:depth], options[:depth], max(wish.budget, depth)))


def _picker(wishes: Sequence[DraftWish]) -> Pick:
    """The largest logit for greedy requests; for others a draw with the random number of the target's own draw."""
    sampled = [row for row, wish in enumerate(wishes) if wish.draw.sampling.temperature >= GREEDY_BELOW]

    def pick(logits: Tensor, depth: int) -> Tensor:
        chosen = logits.argmax(-1)
        for row in sampled:
            best = logits[row].float().topk(min(PICK_AMONG, logits.shape[-1]))
            chosen[row] = best.indices[choose_row(best.values, _plain(wishes[row].draw, depth))]
        return chosen

    return pick


def _plain(draw: Draw, depth: int) -> Draw:
    """The draw `depth` tokens further on, without what looks tokens up by their ids."""
    sampling = replace(
        draw.sampling, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, logit_bias=()
    )
    return Draw(sampling, draw.index + depth)
