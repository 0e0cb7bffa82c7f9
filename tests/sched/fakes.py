"""A fake model on fake memory, and a fake encoder, for the property test of the scheduler.

The runner knows nothing but plans. It writes what a token *is* (its id, or key and row number of an image, and its
rope position) into memory by page and place, folds the recurrent state of each slot, and answers with a hash over all
it can see; so a mixed-up page, a stale slot, a wrong position or a missing row gives another answer. `expected` is
plain greedy decoding of the same hash without any memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from foveate.core.plan import Draw, Slice, SliceResult, StepPlan, StepResult
from foveate.core.values import Ending, Logprob, Prompt, Sampling

VOCAB = 40
PLACEHOLDER = 39  # an ordinary token where a text happens to hold it


def meaning(token: int, position: int, key: str | None = None, row: int = 0) -> int:
    """What a token means to the model: text by its id, an image row by key and number, both by rope position."""
    return hash((token, position) if key is None else (PLACEHOLDER, position, key_number(key), row))


def key_number(key: str) -> int:
    return int(key[1:])


def fold(state: int, seen: int) -> int:
    """One step of the recurrent state; 0 is a fresh one."""
    return hash((state, seen))


def answer(seen: tuple[int, ...], state: int, draw: Draw, index: int, history: tuple[int, ...]) -> int:
    """The token that follows, from everything a draw may depend on."""
    token = hash((seen, state, index, history)) % VOCAB
    while token in draw.forbidden:
        token = (token + 1) % VOCAB
    return token


def expected(prompt: Prompt, sampling: Sampling, ending: Ending) -> tuple[list[int], str]:
    """Plain greedy decoding of one request alone: all its output and why it ends."""
    seen = [meaning(token, prompt.positions.axes[0][at]) for at, token in enumerate(prompt.tokens)]
    inside = set()
    for span in prompt.spans:
        for row in range(span.rows):
            at = span.start_at + row
            inside.add(at)
            seen[at] = meaning(0, prompt.positions.axes[0][at], span.key, row)
    history = [token for at, token in enumerate(prompt.tokens) if at not in inside]
    state, out = 0, list[int]()
    for one in seen:
        state = fold(state, one)
    while True:
        draw = Draw(sampling, len(out), forbidden=ending.stop_ids if len(out) < ending.min_new else frozenset())
        past = (*history, *out) if sampling.needs_history else ()
        token = answer(tuple(seen), state, draw, len(out), past)
        out.append(token)
        if token in ending.stop_ids and len(out) > ending.min_new:
            return out, "stop"
        if len(out) == ending.max_new:
            return out, "length"
        seen.append(meaning(token, len(prompt.tokens) + len(out) - 1 + prompt.positions.offset))
        state = fold(state, seen[-1])


@dataclass
class Runner:
    """Executes plans on memory addressed by page and place, and by state slot."""

    page_len: int
    rows: set[str] = field(default_factory=set)  # keys whose rows are on the device
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.number, tuple(self._run_slice(piece) for piece in plan.slices))

    def _run_slice(self, piece: Slice) -> SliceResult:
        means = [meaning(token, piece.positions[0][i]) for i, token in enumerate(piece.tokens)]
        for span in piece.spans:
            assert span.key in self.rows, f"rows of {span.key} are not there"
            for at in range(max(span.start_at, piece.start_at), min(span.end_at, piece.end_at)):
                i = at - piece.start_at
                assert piece.tokens[i] == PLACEHOLDER, "a row on an ordinary token"
                means[i] = meaning(0, piece.positions[0][i], span.key, at - span.start_at)
        for i, one in enumerate(means):
            self.cells[self._cell(piece, piece.start_at + i)] = one
        assert piece.start_at == 0 or piece.state_slot in self.states, "a state that was never written"
        state = self.states[piece.state_slot] if piece.start_at else 0
        for one in means[: len(means) - piece.draft_len]:
            state = fold(state, one)
        tokens: list[int] = []
        if piece.draw is not None:
            state = self._verify(piece, piece.draw, means, state, tokens)
        self.states[piece.state_slot] = state
        return SliceResult(piece.uid, tuple(tokens), tuple(Logprob(token, 0.0) for token in tokens))

    def _verify(self, piece: Slice, draw: Draw, means: list[int], state: int, tokens: list[int]) -> int:
        """Draw after the last settled token and after each draft that holds; the state up to what was accepted."""
        settled_len = piece.end_at - piece.draft_len
        draft = piece.tokens[len(piece.tokens) - piece.draft_len :]
        seen = [self.cells[self._cell(piece, at)] for at in range(settled_len)]
        for i in range(piece.draft_len + 1):
            history = (*draw.history, *tokens) if draw.sampling.needs_history else ()
            tokens.append(answer(tuple(seen), state, draw, draw.index + i, history))
            if i == piece.draft_len or tokens[-1] != draft[i]:
                break
            seen.append(means[len(means) - piece.draft_len + i])
            state = fold(state, seen[-1])
        return state

    def _cell(self, piece: Slice, at: int) -> tuple[int, int]:
        return piece.pages[at // self.page_len], at % self.page_len


@dataclass
class Encoder:
    """Jobs in any order; one that has begun cannot be cancelled and lands late, as a ghost."""

    jobs: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)

    def cancel(self, key: str) -> None:
        if key in self.jobs and key in self.begun:
            self.ghosts.add(key)
        elif key in self.jobs:
            self.jobs.remove(key)

    def take(self, rng: Random) -> str:
        key = self.jobs.pop(rng.randrange(len(self.jobs)))
        if key not in self.jobs:
            self.begun.discard(key)
            self.ghosts.discard(key)
        return key
