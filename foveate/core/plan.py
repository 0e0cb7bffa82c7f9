"""What policy tells mechanism and what mechanism answers: frozen values of integers and keys.

`plan() -> execute() -> commit()`: a `StepPlan` holds everything a step needs, so that a bad step can be written down
and replayed. `sched` and `run` share this module and nothing else. No tensors, no clock, no configuration.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from foveate.core.values import Logprob, Sampling, Span


@dataclass(frozen=True, slots=True)
class Draw:
    """A wish to sample after a slice's last token (and, with drafts, after each of the drafted ones).

    `index` counts the output tokens that exist already, so a draw depends on seed and index only, never on the batch.
    `history` is prompt + output (image placeholders left out) when penalties need it, the output when only a grammar
    or a thought's bound does, else empty; the last `output_len` of it are output. `forbidden` are ids that may not come
    yet (stop ids before `min_new`).
    """

    sampling: Sampling
    index: int
    history: tuple[int, ...] = ()
    output_len: int = 0
    forbidden: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Slice:
    """The tokens of one request that one step runs.

    tokens: ids at the token indices [start_at, end_at); the last `draft_len` of them are guesses to verify.
    positions: rope positions of these tokens, one array per axis.
    spans: the image spans that overlap the slice, in order; their rows replace the embeddings.
    pages: the request's page table, long enough to hold end_at tokens.
    state_slot: its fixed-size state; a slice with start_at == 0 starts from zeros.
    parents: where the guesses form a tree, one number per guess: 0 is the token before them all, i is guess i; each
    stands behind its parent. () for a chain. A guess's rope position is that of its depth, its place in memory its own.
    draw: None when no token is to be sampled (a prefill chunk that does not reach the end).
    """

    uid: int
    start_at: int
    tokens: tuple[int, ...]
    positions: tuple[array[int], ...]
    pages: tuple[int, ...]
    state_slot: int
    spans: tuple[Span, ...] = ()
    draft_len: int = 0
    draw: Draw | None = None
    parents: tuple[int, ...] = ()

    @property
    def end_at(self) -> int:
        return self.start_at + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: slices to run in one forward, and what the encoder should do meanwhile.

    started: requests that received their slot in this plan (their pictures may be decoded from now on).
    encode: keys to hand to the encoder, in order of need. drop: keys whose rows nobody needs any more; an encode of
    such a key that has not begun is cancelled.
    """

    number: int
    slices: tuple[Slice, ...] = ()
    started: tuple[int, ...] = ()
    encode: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def token_count(self) -> int:
        return sum(len(piece.tokens) for piece in self.slices)


@dataclass(frozen=True, slots=True)
class DraftWish:
    """A decoding request whose next tokens shall be guessed.

    tail: its last tokens, as many as the drafter looks back on; the newest, at index start_at, is not in memory yet.
    positions: rope positions of the indices [start_at - 1, start_at + draft_len], one array per axis.
    draft_len: tokens to guess along one path, and budget: over all paths of a tree. draw: as of the slice to come.
    """

    uid: int
    tail: tuple[int, ...]
    start_at: int
    positions: tuple[array[int], ...]
    pages: tuple[int, ...]
    state_slot: int
    draft_len: int
    budget: int
    draw: Draw


@dataclass(frozen=True, slots=True)
class DraftGuess:
    """Guessed tokens of a request, `parents` as in `Slice`; `confidence` is one probability per token, or empty."""

    uid: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What a slice gave: accepted drafts followed by one new token; empty when nothing was to be sampled.

    `error` set means that this request alone failed, and tokens are void.
    """

    uid: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One result per slice of the plan, in the plan's order."""

    number: int
    slices: tuple[SliceResult, ...] = ()
