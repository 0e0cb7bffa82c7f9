"""What a draft model is to the rest of foveate: it watches what stands, and guesses what comes.

Owns the shapes of that contract. A draft model keeps its context in the same pages and state slots as its target, under
names of its own, so that it is leased, preempted and recomputed with its request and nothing has to be told to it when
one ends. It sees tokens and the target's features, never image rows. Guesses may be wrong in any way: they decide how
fast an answer comes, never what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from foveate.models.interface import Capture, Memory, MemorySpec

Pick = Callable[[Tensor, int], Tensor]
"""Chooses one token per request from logits [requests, vocab] for the guess number `depth`, counted from 0."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Tokens that one step made stand, flattened: sequence s owns lens[s] of them, from index past_lens[s] on.

    A sequence that starts at 0 is new or starts over. features, final and streams are None unless captured.
    """

    ids: Tensor  # [tokens] int64
    positions: Tensor  # [axes, tokens] int64, rope positions of the target
    past_lens: tuple[int, ...]
    lens: tuple[int, ...]
    pages: Tensor  # [sequences, most pages] int64
    slots: Tensor  # [sequences] int64
    features: Tensor | None  # [tokens, layers * hidden]
    final: Tensor | None  # [tokens, hidden]
    streams: Tensor | None = None  # [tokens, streams * hidden]


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests whose next `draft_len` tokens shall be guessed; all their tokens before the anchor have been seen."""

    anchors: Tensor  # [requests] int64, the newest token of each
    past_lens: tuple[int, ...]  # tokens seen, which is the anchor's index
    positions: Tensor  # [axes, requests, draft_len + 1] int64, rope positions from index past_len - 1 on
    pages: Tensor  # [requests, most pages] int64
    slots: Tensor  # [requests] int64
    draft_len: int


@dataclass(frozen=True, slots=True)
class Guesses:
    """Guessed tokens, and what else the drafter thinks of them.

    tokens: [requests, depth] int64, the chain. confidence: [requests, depth], the probability that a token is right if
    those before it are. ids, logprobs: [requests, depth, options], the best tokens of each depth, best first. known:
    [requests] bool, whether there was anything to guess from, else a request's guesses mean nothing; None: always.
    """

    tokens: Tensor
    confidence: Tensor
    ids: Tensor
    logprobs: Tensor
    known: Tensor | None = None


class DraftModel(Protocol):
    """A drafter with weights; reads and writes only its own part of the memory, named `draft.*`."""

    capture: Capture  # what it reads of the target
    most_len: int  # tokens it can guess at once

    def memory_spec(self) -> MemorySpec: ...

    def observe(self, seen: Seen, memory: Memory) -> None:
        """Take tokens that stand into the context of their sequences."""
        ...

    def propose(self, asked: Asked, memory: Memory, pick: Pick) -> Guesses:
        """Guess; the context stays as it is."""
        ...
