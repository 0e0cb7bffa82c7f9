"""Whose turn it is: `plan()` says what the next step runs, `commit()` learns what came of it.

Every running request wants min(known, frontier) - computed tokens; a plan hands out the step's tokens, pages and
slots to those wants, oldest request first, and commit moves the cursors. One plan with slices is open at a time, and
memory or rows that it uses are not given away before it is committed or failed. Promises: every submitted request
ends in exactly one Finished or Failed unless it is aborted (an abort yields no event here: who aborts, tells); the
oldest running request always gets on, so all do; a plan without slices means that an image is under way at the
encoder. Refuses to know tensors, devices, text and time beyond the `now` passed in, in seconds of one steady clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from foveate.core.errors import EncodeFailed, FoveateError
from foveate.core.plan import DraftWish, Slice, SliceResult, StepPlan, StepResult
from foveate.core.values import Ending, Event, Failed, Finished, Output, Prompt, Sampling, Timings
from foveate.sched.admission import Limits, WaitingLine, refuse_what_never_fits
from foveate.sched.blocks import Pool
from foveate.sched.images import Images, State
from foveate.sched.outcomes import check, decodes, public
from foveate.sched.request import Account, Request, depths
from foveate.sched.speculate import Speculation


@dataclass(frozen=True, slots=True)
class Stats:
    """A look at the scheduler: requests, memory, images. From `image_lookups` on, counts since the start."""

    waiting: int
    running: int
    waiting_image_rows: int
    waiting_bytes: int
    free_pages: int
    leased_pages: int
    free_slots: int
    leased_slots: int
    landed_images: int
    landed_rows: int
    encoding_images: int
    encoding_rows: int
    kept_images: int
    kept_rows: int
    image_lookups: int
    image_hits: int
    preemptions: int


@dataclass(slots=True)
class _Step:
    """The tokens of the step being planned: what is left, and who takes how many. Lives within one `plan()`."""

    token_len: int  # left for anyone
    prompt_len: int  # left for prompts
    takes: dict[int, int] = field(default_factory=dict)  # by uid, in the order of the slices
    preempted: bool = False

    def give(self, request: Request, take: int) -> None:
        self.takes[request.uid] = take
        self.token_len -= take
        self.prompt_len -= 0 if request.decoding else take

    def withdraw(self, request: Request) -> None:
        take = self.takes.pop(request.uid, 0)
        self.token_len += take
        self.prompt_len += 0 if request.decoding else take


class Scheduler:
    """The policy of one engine. Not thread-safe: the engine's loop is its only caller."""

    def __init__(self, limits: Limits, speculation: Speculation | None = None) -> None:
        """Without a `speculation` nothing is ever wished for; drafts that are proposed count all the same."""
        self._limits, self._speculation = limits, speculation
        self._pool = Pool(limits.pages, limits.slots, limits.page_len)
        self._images = Images(limits.image_rows, limits.encode_ahead, limits.stream, limits.keep_images)
        self._waiting = WaitingLine(limits)
        self._running: list[Request] = []  # in the order of their starts
        self._live: dict[int, Request] = {}  # waiting or running, by uid
        self._in_step: dict[int, Request] = {}  # those with a slice in the open plan, even if they ended since
        self._plan_number = 0
        self._planned_s = 0.0
        self._preemptions = 0

    # --- what the engine's mailbox and the encoder bring ---

    def submit(
        self, uid: int, prompt: Prompt, sampling: Sampling, ending: Ending, now: float, held_bytes: int = 0
    ) -> None:
        """Put a request in line; `held_bytes` are the bytes of pictures that it keeps while it waits.

        Raises ContextLengthExceeded for what can never fit and Busy when the line is full; then nothing is kept.
        """
        assert uid not in self._live and uid not in self._in_step, "a uid is used once"
        refuse_what_never_fits(prompt, ending, self._limits)
        self._waiting.refuse_when_full(prompt, held_bytes, self._pool.free_slots)
        request = Request(uid, prompt, sampling, ending, Account(now), held_bytes)
        request.account.note_queued(now, True)
        self._live[uid] = request
        self._waiting.join(request)
        self._images.hold(request)

    def abort(self, uid: int) -> None:
        """End a request without an event, at any moment; an unknown uid, or one that has ended, is ignored.

        Memory used by the open plan is released when that is committed or failed; its results are then void.
        """
        if uid in self._live:
            self._forget(self._live[uid])

    def timings(self, uid: int) -> Timings | None:
        """The account of a live request so far; None for any other."""
        request = self._live.get(uid)
        return None if request is None else request.account.timings(request.prompt.spans)

    def stage(self, uid: int) -> tuple[str, int]:
        """What a live request is at ('queued', 'encode', 'prefill', 'generate'), and the length of its output."""
        request = self._live[uid]
        if request.lease is None:
            stage = "queued"
        elif request.decoding:
            stage = "generate"
        else:
            stage = "prefill" if self._want(request) else "encode"
        return stage, len(request.output)

    def abort_all(self) -> tuple[int, ...]:
        """Abort every request because all is in doubt: no image is kept for later ones, theirs included; their uids."""
        self._images.forget_kept()
        uids = tuple(self._live)
        for uid in uids:
            self._images.doubt(self._live[uid])
            self.abort(uid)
        return uids

    def landed(self, key: str, now: float) -> None:
        """The rows of an image are on the model's device as of now, and stay there until a plan drops the key."""
        self._images.land(key)
        self._note_stalls(now)

    def lost(self, key: str, error: Exception, now: float) -> list[Event]:
        """The encoder failed on an image: Failed for each request that has yet to prefill rows of it."""
        if not self._images.lose(key):
            return []
        public = error if isinstance(error, FoveateError) else EncodeFailed("an image of the request was not encoded")
        return [self._fail(request, public) for request in list(self._live.values()) if request.needs(key)]

    # --- guesses ---

    @property
    def guesses(self) -> bool:
        """Whether anybody may be guessed for."""
        return self._speculation is not None

    def wishes(self) -> tuple[DraftWish, ...]:
        """Whose next tokens should be guessed before the next plan, and how far."""
        if self._speculation is None:
            return ()
        decoding = {request.uid: request for request in self._running if request.decoding}
        rooms = {uid: request.room_len for uid, request in decoding.items()}
        lucks = {uid: request.luck for uid, request in decoding.items()}
        lengths, policy = self._speculation.lengths(rooms, lucks, len(decoding)), self._speculation
        lookback = policy.limits.lookback
        return tuple(decoding[uid].wish(take, policy.budget(take), lookback) for uid, take in lengths.items())

    def propose(
        self, uid: int, tokens: tuple[int, ...], parents: tuple[int, ...] = (), confidence: tuple[float, ...] = ()
    ) -> None:
        """Guess a decoding request's next tokens, to be verified in the next step; ignored for any other.

        The guess, a chain or with `parents` (as in `Slice`) a tree, is cut to what the request may still generate, and
        is the first thing dropped under pressure. A chain is cut, too, where the `confidence` in it says so.
        """
        assert uid not in self._in_step, "a draft comes between commit and plan"
        if uid in self._live:
            worth_len = self._speculation.worth_len(confidence) if self._speculation and confidence else len(tokens)
            self._live[uid].propose(tokens[:worth_len], parents)

    def stop_guessing(self) -> None:
        """Wish for nothing any more; what was proposed is still verified."""
        self._speculation = None

    def note_cost(self, plan: StepPlan, seconds: float) -> None:
        """What a step has cost, guessing included; only steps that do nothing but decode teach anything."""
        if self._speculation is not None and all(decodes(piece) for piece in plan.slices):
            drafted = sum(piece.draft_len for piece in plan.slices)
            self._speculation.cost.note(len(plan.slices), drafted, seconds)

    # --- the step ---

    def plan(self, now: float) -> StepPlan:
        """What to run and to encode next; a plan with slices must be committed or failed before the next one.

        `started` lists every request that got its slot in this plan, also one that had it before a preemption.
        `drop` takes effect before `encode` and never holds a key of the plan's own slices.
        """
        assert not self._in_step, "the plan before is still open"
        step = self._hand_out_tokens(now)
        # After a preemption memory is short: starting someone at once would only move the pressure.
        started = () if step.preempted and step.takes else self._start(step, now)
        slices = tuple(self._live[uid].slice(take) for uid, take in step.takes.items())
        encode, drop = self._images.plan(self._running, islice(self._waiting, self._limits.encode_ahead))
        self._in_step = {piece.uid: self._live[piece.uid] for piece in slices}
        self._plan_number += 1
        self._planned_s = now
        self._note_stalls(now)
        return StepPlan(self._plan_number, slices, started, encode, drop)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]:
        """Take over what a step gave: Output, and Finished or Failed where a request ended."""
        check(plan, result)
        events: list[Event] = []
        for request, piece, outcome in zip(self._close(plan), plan.slices, result.slices, strict=True):
            if self._live.get(request.uid) is not request:
                request.memory.release()
            elif outcome.error is not None:
                events.append(self._fail(request, public(outcome.error)))
            else:
                events += self._advance(request, piece, outcome, now)
        self._note_stalls(now)
        return events

    def fail(self, plan: StepPlan, error: Exception, now: float) -> list[Event]:
        """The step failed as a whole: so does every request in it. What the plan says of images still holds."""
        events: list[Event] = []
        for request in self._close(plan):
            if self._live.get(request.uid) is request:
                events.append(self._fail(request, public(error)))
            else:
                request.memory.release()
        self._note_stalls(now)
        return events

    # --- what others may see ---

    @property
    def busy(self) -> bool:
        """Whether there is anything to plan for: a request, or a key to drop."""
        return bool(self._live) or bool(self._in_step) or self._images.has_leftovers

    def stats(self) -> Stats:
        """The numbers of this moment."""
        return Stats(
            waiting=len(self._waiting),
            running=len(self._running),
            waiting_image_rows=self._waiting.image_rows,
            waiting_bytes=self._waiting.held_bytes,
            free_pages=self._pool.free_pages,
            leased_pages=self._pool.leased_pages,
            free_slots=self._pool.free_slots,
            leased_slots=self._pool.leased_slots,
            landed_images=self._images.count(State.LANDED),
            landed_rows=self._images.rows(State.LANDED),
            encoding_images=self._images.count(State.ENCODING),
            encoding_rows=self._images.rows(State.ENCODING),
            kept_images=self._images.kept_count,
            kept_rows=self._images.kept_rows,
            image_lookups=self._images.lookups,
            image_hits=self._images.hits,
            preemptions=self._preemptions,
        )

    def assert_whole(self) -> None:
        """Fail unless free and leased memory add up and, when idle, nothing at all is held."""
        self._pool.assert_sound()
        if not self.busy:
            assert not self._pool.leased_pages and not self._pool.leased_slots, "memory is held by nobody"
            assert self._images.is_empty, "images are held by nobody"

    # --- tokens ---

    def _hand_out_tokens(self, now: float) -> _Step:
        """Decode first, then prompts, oldest first; but an atomic span that would never fit so goes before all."""
        wanting = [request for request in self._running if self._want(request)]
        decoders = [request for request in wanting if request.decoding]
        prefills = [request for request in wanting if not request.decoding]
        limits = self._limits
        step = _Step(limits.step_tokens, limits.mixed_tokens if decoders else limits.step_tokens)
        if prefills and prefills[0].least_len() > min(step.prompt_len, step.token_len - len(decoders)):
            self._serve(prefills[0], prefills[0].least_len(), step, now)
        kept_len = len(decoders) + min(limits.mixed_tokens, sum(self._want(request) for request in prefills))
        for request in decoders:
            kept_len -= 1  # drafts leave a token for each decoder behind, and the prompts their share
            self._serve(request, min(step.token_len, max(1, step.token_len - kept_len)), step, now)
        for request in prefills:
            self._serve(request, min(step.prompt_len, step.token_len), step, now)
        return step

    def _serve(self, request: Request, most_len: int, step: _Step, now: float) -> None:
        """Give a running request what it wants, up to `most_len` tokens, and the pages for it."""
        if request.lease is None or request.uid in step.takes:
            return  # preempted for an older one, or served already
        take = self._fit(request, min(self._want(request), most_len))
        if take > 0 and self._make_room(request, step, now):
            take = self._fit(request, self._fit_pages(request, take))
            request.memory.grow(request.computed + take)
            step.give(request, take)

    def _want(self, request: Request) -> int:
        return request.want(self._images.landed, self._limits.stream)

    def _fit(self, request: Request, take: int) -> int:
        """`take`, shortened so that it splits no atomic span."""
        return request.whole_spans(request.computed + take) - request.computed

    # --- memory ---

    def _fit_pages(self, request: Request, take: int) -> int:
        """`take`, shortened to the free pages; a draft may only use those that no prompt or output lacks."""
        pages = self._pool.free_pages
        if request.decoding and take > 1:
            own = request.memory.missing(request.settled_len)
            pages = own + max(0, pages - self._promised_pages())
        return min(request.computed + take, request.memory.most_len(pages)) - request.computed

    def _promised_pages(self) -> int:
        """Pages that the running requests still lack for their prompts and outputs so far."""
        return sum(request.memory.missing(request.settled_len) for request in self._running)

    def _make_room(self, request: Request, step: _Step, now: float) -> bool:
        """Preempt the newest requests until this one can run its smallest slice; False if it had to yield itself."""
        while request.memory.missing(request.computed + request.least_len()) > self._pool.free_pages:
            victim = next(r for r in reversed(self._running) if r is request or r.memory.pages)
            step.withdraw(victim)
            step.preempted = True
            self._running.remove(victim)
            victim.rewind()
            victim.account.note_stalled(now, False)
            victim.account.note_queued(now, True)
            self._waiting.rejoin(victim)
            self._preemptions += 1
            if victim is request:
                return False
        return True

    def _start(self, step: _Step, now: float) -> tuple[int, ...]:
        """Start waiting requests while slots and pages last; a slot comes first, so that images are encoded early."""
        started: list[int] = []
        while self._pool.free_slots and (request := self._waiting.call(self._has_room_for)) is not None:
            request.lease = self._pool.lease()
            request.account.note_queued(now, False)
            self._running.append(request)
            started.append(request.uid)
            self._serve(request, min(step.prompt_len, step.token_len), step, now)
        return tuple(started)

    def _has_room_for(self, request: Request) -> bool:
        """Whether its tokens so far, and a page more, fit beside those of all that run: else it is preempted soon."""
        needed = min(self._pool.pages_for(request.settled_len) + 1, self._pool.pages_for(request.most_len))
        return not self._running or needed <= self._pool.free_pages - self._promised_pages()

    # --- outcomes ---

    def _close(self, plan: StepPlan) -> list[Request]:
        """The requests of the open plan, which is open no longer."""
        assert plan.number == self._plan_number, "not the last plan"
        requests = [self._in_step[piece.uid] for piece in plan.slices]
        self._in_step = {}
        return requests

    def _advance(self, request: Request, piece: Slice, outcome: SliceResult, now: float) -> list[Event]:
        if not request.decoding:
            request.account.note_prefill(request.prompt.spans, piece, self._planned_s, now)
        elif piece.draft_len and self._speculation is not None:
            path_len = max(depths(piece.parents)) if piece.parents else piece.draft_len
            self._speculation.note(request.luck, path_len, len(outcome.tokens) - 1)
        tokens, logprobs, reason = request.advance(piece, outcome)
        if not tokens:
            return []
        request.account.note_output(now)
        events: list[Event] = [Output(request.uid, tokens, logprobs)]
        if reason is not None:
            self._forget(request)
            events.append(Finished(request.uid, reason, request.account.timings(request.prompt.spans)))
        return events

    def _fail(self, request: Request, error: Exception) -> Failed:
        self._images.doubt(request)
        self._forget(request)
        return Failed(request.uid, error)

    def _forget(self, request: Request) -> None:
        """Take a request out of everything; memory in use by the open plan stays leased until that is closed."""
        del self._live[request.uid]
        self._images.release(request)
        if request.lease is None:
            self._waiting.leave(request)
            return
        self._running.remove(request)
        if request.uid not in self._in_step:
            request.lease.release()

    def _note_stalls(self, now: float) -> None:
        for request in self._running:
            request.account.note_stalled(now, request.uid not in self._in_step and not self._want(request))
