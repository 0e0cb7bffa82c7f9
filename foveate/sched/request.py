"""One request and its arithmetic: a cursor that catches up with what is known, and a frontier it may not pass.

`computed` counts the tokens whose memory has been written; `known` = prompt + output + draft. The request wants
min(known, frontier) - computed tokens, where the frontier is the start of the first image whose rows have not landed.
Chunked prefill, image streaming, decode, draft verification and preemption are all this one subtraction: there are no
phases. Also owns the request's own clock account. Refuses to know other requests, and what memory costs.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from dataclasses import dataclass, field

from foveate.core.plan import DraftWish, Draw, Slice, SliceResult
from foveate.core.values import Ending, ImageTiming, Logprob, Prompt, Sampling, Span, Timings
from foveate.sched.blocks import Lease
from foveate.sched.speculate import Luck


@dataclass(slots=True)
class Account:
    """Where a request's time went, in seconds of the clock that the engine passes in.

    queued_s: in the waiting line, again after each preemption. waited_s: running, but the next image had not landed
    and no step held any of its tokens. prefill_s: steps that held prompt tokens of it. The three never overlap.
    """

    submitted_s: float
    queued_s: float = 0.0
    waited_s: float = 0.0
    prefill_s: float = 0.0
    preemptions: int = 0
    decode_steps: int = 0
    draft_steps: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)  # steps that took the guess at each depth
    first_output_s: float | None = None
    last_output_s: float | None = None
    windows: dict[int, tuple[float, float | None]] = field(default_factory=dict)  # prefill of the span of this number
    _queued_since_s: float | None = None
    _stalled_since_s: float | None = None

    def note_queued(self, now: float, queued: bool) -> None:
        """Whether it stands in the waiting line from `now` on."""
        if self._queued_since_s is not None:
            self.queued_s += now - self._queued_since_s
        self._queued_since_s = now if queued else None

    def note_stalled(self, now: float, stalled: bool) -> None:
        """Whether nothing but a late image keeps it from going on, from `now` on."""
        if self._stalled_since_s is not None:
            self.waited_s += now - self._stalled_since_s
        self._stalled_since_s = now if stalled else None

    def note_prefill(self, spans: tuple[Span, ...], piece: Slice, began_s: float, now: float) -> None:
        """A step that ran from `began_s` to `now` held prompt tokens; a span keeps its first window."""
        self.prefill_s += now - began_s
        for number, span in enumerate(spans):
            start_s, end_s = self.windows.get(number, (began_s, None))
            if end_s is None and span.start_at < piece.end_at and span.end_at > piece.start_at:
                self.windows[number] = (start_s, now if span.end_at <= piece.end_at else None)

    def note_decode(self, drafted: int, accepted_len: int) -> None:
        """A decoding step verified so many guessed tokens and accepted so many."""
        self.decode_steps += 1
        self.draft_steps += drafted > 0
        self.drafted += drafted
        self.accepted += [0] * (accepted_len - len(self.accepted))
        for depth in range(accepted_len):
            self.accepted[depth] += 1

    def note_output(self, now: float) -> None:
        """Output tokens came at `now`."""
        self.last_output_s = now
        if self.first_output_s is None:
            self.first_output_s = now

    def timings(self, spans: tuple[Span, ...]) -> Timings:
        """The part of the timings that scheduling knows; decode and encode times are left for the engine to fill."""
        first_s, last_s = self.first_output_s, self.last_output_s
        windows = (self.windows.get(number, (None, None)) for number in range(len(spans)))
        return Timings(
            queued_s=self.queued_s,
            prefill_s=self.prefill_s,
            waited_s=self.waited_s,
            first_token_s=0.0 if first_s is None else first_s - self.submitted_s,
            generation_s=0.0 if first_s is None or last_s is None else last_s - first_s,
            preemptions=self.preemptions,
            decode_steps=self.decode_steps,
            draft_steps=self.draft_steps,
            drafted=self.drafted,
            accepted=tuple(self.accepted),
            images=tuple(
                ImageTiming(span.key, span.rows, prefill_start_s=start_s, prefill_end_s=end_s)
                for span, (start_s, end_s) in zip(spans, windows, strict=True)
            ),
        )


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, what has been generated, what is guessed, and how far its memory has come.

    `lease` is None while it waits. `passed` counts the requests that started before it although they came later.
    """

    uid: int
    prompt: Prompt
    sampling: Sampling
    ending: Ending
    account: Account
    held_bytes: int = 0
    output: list[int] = field(default_factory=list)
    draft: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # of the draft where it is a tree, as in `Slice`
    computed: int = 0
    lease: Lease | None = None
    passed: int = 0
    luck: Luck = field(default_factory=Luck)

    @property
    def settled_len(self) -> int:
        """Tokens that stand: prompt and output."""
        return len(self.prompt.tokens) + len(self.output)

    @property
    def most_len(self) -> int:
        """Tokens it can come to."""
        return len(self.prompt.tokens) + self.ending.max_new

    @property
    def decoding(self) -> bool:
        """Whether only its newest output token, and a draft behind it, is left to run."""
        return bool(self.output) and self.computed == self.settled_len - 1

    @property
    def memory(self) -> Lease:
        """Its lease; only a running request has one."""
        assert self.lease is not None, "a waiting request has no memory"
        return self.lease

    def spans_ahead(self) -> list[Span]:
        """The images that the cursor has not passed, in order."""
        spans = self.prompt.spans
        if not spans or spans[-1].end_at <= self.computed:
            return []
        return [span for span in spans if span.end_at > self.computed]

    def needs(self, key: str) -> bool:
        """Whether rows of this image are still to be run."""
        return any(span.key == key for span in self.spans_ahead())

    def want(self, landed: Container[str], stream: bool) -> int:
        """Tokens it could run now; `stream` off waits until all images ahead have landed."""
        known_len = self.settled_len + len(self.draft)
        late = next((span for span in self.spans_ahead() if span.key not in landed), None)
        if late is None:
            return known_len - self.computed
        return max(0, late.start_at - self.computed) if stream else 0

    def whole_spans(self, end_at: int) -> int:
        """The farthest end up to `end_at` that splits no atomic span."""
        for span in self.spans_ahead():
            if span.atomic and span.start_at < end_at < span.end_at:
                return span.start_at
        return end_at

    def least_len(self) -> int:
        """Tokens of the smallest slice it can run: one, or an atomic span that begins at the cursor."""
        span = next(iter(self.spans_ahead()), None)
        return span.rows if span is not None and span.atomic and span.start_at == self.computed else 1

    @property
    def room_len(self) -> int:
        """Drafted tokens that could be accepted in its next step; none unless it is decoding.

        One token always follows the accepted ones, hence the minus one. A burst stays on one side of `min_new`,
        because the stop ids are forbidden for a whole slice or not at all.
        """
        output_len = len(self.output)
        end_len = self.ending.min_new if output_len < self.ending.min_new else self.ending.max_new
        return max(0, min(end_len, self.ending.max_new) - output_len - 1) if self.decoding else 0

    def propose(self, tokens: tuple[int, ...], parents: tuple[int, ...] = ()) -> None:
        """Take a draft to verify in its next step, a chain or with `parents` a tree, cut to what may still come."""
        if parents:
            self.draft, self.parents = cut_tree(tokens, parents, self.room_len)
        else:
            self.draft, self.parents = tokens[: self.room_len], ()

    def slice(self, take: int) -> Slice:
        """The next `take` tokens as work for a step; what remains of the draft behind them is let go."""
        start_at, end_at, prompt_len = self.computed, self.computed + take, len(self.prompt.tokens)
        draft_len = max(0, end_at - self.settled_len)
        self.draft, self.parents = self.draft[:draft_len], self.parents[:draft_len]
        later = (*self.output[max(0, start_at - prompt_len) :], *self.draft) if end_at > prompt_len else ()
        return Slice(
            uid=self.uid,
            start_at=start_at,
            tokens=(self.prompt.tokens[start_at:end_at] + later)[:take],
            positions=self._positions(start_at, end_at),
            pages=tuple(self.memory.pages),
            state_slot=self.memory.slot,
            spans=tuple(span for span in self.spans_ahead() if span.start_at < end_at),
            draft_len=len(self.draft),
            draw=self._draw() if end_at >= self.settled_len else None,
            parents=self.parents,
        )

    def wish(self, draft_len: int, budget: int, lookback: int) -> DraftWish:
        """What a drafter needs to guess the next tokens of this decoding request."""
        start_at = self.computed
        tail = tuple(self.output[-lookback:])
        if len(tail) < lookback:
            tail = self.prompt.tokens[-(lookback - len(tail)) :] + tail
        return DraftWish(
            uid=self.uid,
            tail=tail,
            start_at=start_at,
            positions=self.prompt.positions.window(start_at - 1, start_at + draft_len + 1),
            pages=tuple(self.memory.pages),
            state_slot=self.memory.slot,
            draft_len=draft_len,
            budget=budget,
            draw=self._draw(),
        )

    def advance(self, piece: Slice, outcome: SliceResult) -> tuple[tuple[int, ...], tuple[Logprob, ...], str | None]:
        """Move the cursor by what a step did; the new tokens, their logprobs, and why it ended (None: it has not).

        With n drafts accepted, n + 1 tokens are new and the last of them is known but not yet computed.
        """
        self.draft = self.parents = ()
        if piece.draw is None:
            self.computed = piece.end_at
            return (), (), None
        decoded = self.decoding
        reason = self._append(outcome.tokens)
        new_len = len(self.output) - piece.draw.index
        if decoded:
            self.account.note_decode(piece.draft_len, min(new_len, len(outcome.tokens) - 1))
        self.computed = self.settled_len - 1
        return outcome.tokens[:new_len], outcome.logprobs[:new_len], reason

    def rewind(self) -> None:
        """Give up its memory and start over; the output stands and is run again like a prompt."""
        self.memory.release()
        self.lease, self.computed, self.draft, self.parents = None, 0, (), ()
        self.account.preemptions += 1

    def _positions(self, start_at: int, end_at: int) -> tuple[array[int], ...]:
        """Rope positions of a slice; siblings of a drafted tree share theirs."""
        if not self.parents:
            return self.prompt.positions.window(start_at, end_at)
        line = self.prompt.positions.window(start_at, end_at)
        return tuple(array("q", [axis[depth] for depth in (0, *depths(self.parents))]) for axis in line)

    def _append(self, tokens: tuple[int, ...]) -> str | None:
        for token in tokens:
            stops = token in self.ending.stop_ids and len(self.output) >= self.ending.min_new
            self.output.append(token)
            if stops:
                return "stop"
            if len(self.output) >= self.ending.max_new:
                return "length"
        return None

    def _draw(self) -> Draw:
        output_len = len(self.output)
        return Draw(
            sampling=self.sampling,
            index=output_len,
            history=self._history() if self.sampling.needs_history else (),
            output_len=output_len,
            forbidden=self.ending.stop_ids if output_len < self.ending.min_new else frozenset(),
        )

    def _history(self) -> tuple[int, ...]:
        """Prompt and output without the placeholders of images; the output alone where nothing is penalised."""
        if not self.sampling.penalises:
            return tuple(self.output)
        text: list[int] = []
        start_at = 0
        for span in self.prompt.spans:
            text += self.prompt.tokens[start_at : span.start_at - span.lead_len]
            start_at = span.end_at
        return (*text, *self.prompt.tokens[start_at:], *self.output)


def depths(parents: tuple[int, ...]) -> list[int]:
    """The depth of each drafted token of a tree; a child of the token before them all has depth 1."""
    deep = [0]
    for parent in parents:
        deep.append(deep[parent] + 1)
    return deep[1:]


def cut_tree(
    tokens: tuple[int, ...], parents: tuple[int, ...], most_depth: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tree without what lies deeper than `most_depth`."""
    new, kept_tokens, kept_parents = {0: 0}, list[int](), list[int]()
    for number, (token, parent, depth) in enumerate(zip(tokens, parents, depths(parents), strict=True), 1):
        if depth <= most_depth:
            kept_tokens.append(token)
            kept_parents.append(new[parent])
            new[number] = len(kept_tokens)
    return tuple(kept_tokens), tuple(kept_parents)


def distinct_keys(spans: list[Span]) -> list[str]:
    """Keys of the spans in order, each once."""
    return list(dict.fromkeys(span.key for span in spans))
