"""A world for the real scheduler: a random workload with everything that may befall it, driven to its end.

Requests come at any time, images land late and in any order or are lost, requests are aborted between any two calls,
steps fail, drafts are right or wrong, memory and rows are short. `World` checks every plan and every event against
what the scheduler promises, and at the end every answer against plain greedy decoding. `run_world` raises
AssertionError for whatever is not exactly right.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from random import Random

from foveate.core.errors import Busy, ContextLengthExceeded, FoveateError
from foveate.core.plan import Slice, SliceResult, StepPlan, StepResult
from foveate.core.values import Ending, Event, Failed, Finished, Output, Positions, Prompt, Sampling, Span
from foveate.sched.admission import Limits
from foveate.sched.scheduler import Scheduler
from tests.sched.fakes import PLACEHOLDER, VOCAB, Encoder, Runner, expected, key_number


@dataclass
class Ticket:
    """One submitted request, what must come of it and what came so far."""

    prompt: Prompt
    right: list[int]
    reason: str
    submitted_s: float
    tokens: list[int] = field(default_factory=list)
    terminal: list[Event] = field(default_factory=list)
    aborted: bool = False
    reached_at: int = 0  # as far as its memory ever came

    @property
    def ended(self) -> bool:
        return self.aborted or bool(self.terminal)

    def must_have(self, key: str) -> bool:
        """Whether it cannot go on without this image, and never had all of it before."""
        return not self.ended and any(span.key == key and span.end_at > self.reached_at for span in self.prompt.spans)

    def uses(self, key: str) -> bool:
        return any(span.key == key for span in self.prompt.spans)

    def decodes(self, piece: Slice) -> bool:
        """Whether the slice holds its newest output token (and drafts) only."""
        return bool(self.tokens) and piece.start_at == len(self.prompt.tokens) + len(self.tokens) - 1


def random_limits(rng: Random) -> Limits:
    page_len = rng.choice((1, 2, 4, 8))
    step_tokens = rng.randint(4, 24)
    return Limits(
        slots=rng.randint(1, 6),
        pages=-(-rng.randint(30, 70) // page_len),
        page_len=page_len,
        max_ctx=rng.choice((40, 200)),
        step_tokens=step_tokens,
        mixed_tokens=rng.randint(1, step_tokens),
        image_rows=rng.choice((5, 8, 14, 100)),
        stream=rng.random() < 0.75,
        queue_requests=rng.choice((2, 50, 50)),
        queue_image_rows=rng.choice((12, 500, 500)),
        queue_bytes=rng.choice((4, 500, 500)),
        bypass=rng.randint(0, 4),
        encode_ahead=rng.randint(1, 3),
        keep_images=rng.random() < 0.5,
    )


def random_prompt(rng: Random, atomic: bool) -> Prompt:
    """Up to 30 tokens with up to five images out of six; M-RoPE-like positions that fall behind after images."""
    tokens, spans, positions, position = list[int](), list[Span](), array("q"), 0
    for _ in range(rng.choice((0, 0, 1, 2, 3, 5))):
        text_len = rng.choice((0, 0, 1, 2, 5))
        tokens += [rng.randrange(VOCAB) for _ in range(text_len)]
        positions.extend(range(position, position + text_len))
        key = f"k{rng.randrange(6)}"
        rows = 1 + key_number(key)
        spans.append(Span(key, len(tokens), rows, (2, 2 * rows), atomic))
        tokens += [PLACEHOLDER] * rows
        position += text_len
        positions.extend([position] * rows)
        position += 1
    text_len = rng.randint(1, 10)
    tokens += [rng.randrange(VOCAB) for _ in range(text_len)]
    positions.extend(range(position, position + text_len))
    offset = position + text_len - len(tokens)
    return Prompt(tuple(tokens), Positions((positions,), offset), tuple(spans))


class World:
    """One random workload around one scheduler; `tallies` count what happened, to see that all of it is covered."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.limits = random_limits(self.rng)
        self.scheduler = Scheduler(self.limits)
        self.runner, self.encoder = Runner(self.limits.page_len), Encoder()
        self.tickets: dict[int, Ticket] = {}
        self.now = 0.0
        self.to_come = self.rng.randint(2, 9)
        self.atomic = self.rng.random() < 0.4
        self.calm = self.rng.random() < 0.5  # no aborts and faults: every request must come to its end
        self.tallies: dict[str, int] = {}

    def count(self, what: str, by: int = 1) -> None:
        self.tallies[what] = self.tallies.get(what, 0) + by

    def submit(self) -> None:
        rng, uid = self.rng, self.to_come
        self.to_come -= 1
        prompt = random_prompt(rng, self.atomic)
        stop_ids = frozenset(rng.sample(range(VOCAB), rng.choice((0, 0, 1, 4))))
        ending = Ending(rng.choice((1, 5, 14, 30)), stop_ids, rng.choice((0, 0, 4)))
        sampling = Sampling(0.0, repetition_penalty=rng.choice((1.0, 1.0, 1.1)))
        try:
            self.scheduler.submit(uid, prompt, sampling, ending, self.now, held_bytes=len(prompt.spans))
        except (ContextLengthExceeded, Busy) as error:
            self.count(type(error).__name__)
        else:
            self.tickets[uid] = Ticket(prompt, *expected(prompt, sampling, ending), self.now)

    def disturb(self) -> None:
        """Whatever may come at any moment: submissions, landings, losses, aborts."""
        rng = self.rng
        while self.to_come and rng.random() < 0.4:
            self.submit()
        while self.encoder.jobs and rng.random() < 0.3:
            self.end_encode()
        if not self.calm and rng.random() < 0.08 and self.tickets:
            uid = rng.choice(list(self.tickets))
            self.tickets[uid].aborted |= not self.tickets[uid].terminal
            self.scheduler.abort(uid)
            self.count("aborts")

    def end_encode(self) -> None:
        ghosts = set(self.encoder.ghosts)
        key = self.encoder.take(self.rng)
        if not self.calm and self.rng.random() < 0.05:
            events = self.scheduler.lost(key, RuntimeError("not for clients"), self.now)
            self.count("lost", len(events))
            must_fail = {uid for uid, one in self.tickets.items() if one.must_have(key) and key not in ghosts}
            self.take_events(events, {uid for uid, one in self.tickets.items() if one.uses(key)})
            assert must_fail <= {event.uid for event in events}, "alive without its image"
        else:
            self.runner.rows.add(key)
            self.scheduler.landed(key, self.now)

    def take_events(self, events: list[Event], may_fail: set[int]) -> None:
        for event in events:
            ticket = self.tickets[event.uid]
            assert not ticket.ended, f"an event after the end of {event.uid}"
            if isinstance(event, Output):
                assert [one.token for one in event.logprobs] == list(event.tokens), "logprobs of other tokens"
                self.count("bursts", len(event.tokens) > 1)
                ticket.tokens += event.tokens
                continue
            ticket.terminal.append(event)
            if isinstance(event, Failed):
                assert isinstance(event.error, FoveateError), "not fit for a client"
                assert event.uid in may_fail, f"{event.uid} failed for no reason"
            elif isinstance(event, Finished):
                self.check_times(ticket, event)

    def check_times(self, ticket: Ticket, end: Finished) -> None:
        """Seconds are counted once, and every image was prefilled before the first token."""
        times, spent_s = end.timings, self.now - ticket.submitted_s
        assert min(times.queued_s, times.waited_s, times.prefill_s, times.generation_s) >= 0
        assert times.queued_s + times.waited_s + times.prefill_s <= spent_s + 1e-9, "seconds counted twice"
        assert abs(times.first_token_s + times.generation_s - spent_s) < 1e-9, "the last token is the end"
        for image, span in zip(times.images, ticket.prompt.spans, strict=True):
            assert (image.key, image.rows) == (span.key, span.rows)
            assert image.prefill_start_s is not None and image.prefill_end_s is not None, "an image never prefilled"
            assert ticket.submitted_s <= image.prefill_start_s < image.prefill_end_s, "prefill ended before it began"
            assert image.prefill_end_s <= ticket.submitted_s + times.first_token_s + 1e-9, "prefilled after the answer"
        self.count("waited", times.waited_s > 0)

    def tick(self) -> None:
        """One step, with whatever may come before, during and after it."""
        rng, scheduler = self.rng, self.scheduler
        self.now += rng.random()
        self.disturb()
        self.propose()
        plan = scheduler.plan(self.now)
        self.check_plan(plan)
        self.hand_over(plan)
        used_pages = len({page for piece in plan.slices for page in piece.pages})
        self.now += rng.random()
        self.disturb()
        assert scheduler.stats().leased_pages >= used_pages, "memory released under a running step"
        result = self.runner.run(plan)
        self.now += rng.random()
        self.disturb()
        if plan.slices or rng.random() < 0.5:  # an empty plan needs no commit
            self.finish(plan, result)
        scheduler.assert_whole()
        if not plan.slices and self.encoder.jobs:
            self.end_encode()

    def check_plan(self, plan: StepPlan) -> None:
        """Everything a plan promises, whatever the workload."""
        limits, stats = self.limits, self.scheduler.stats()
        decode_len = sum(len(piece.tokens) for piece in plan.slices if self.tickets[piece.uid].decodes(piece))
        prompt_len = plan.token_count - decode_len
        first = plan.slices[0] if plan.slices else None
        alone = first is not None and any(span.atomic for span in first.spans)  # an atomic span in its turn
        assert plan.token_count <= limits.step_tokens, "more tokens than a step runs"
        assert not decode_len or prompt_len <= limits.mixed_tokens or alone, "prompts crowd out decoding"
        held_rows = stats.landed_rows + stats.encoding_rows + stats.kept_rows
        assert held_rows <= limits.image_rows, "more rows than the capacity"
        assert stats.encoding_images <= limits.encode_ahead and not set(plan.encode) & set(plan.drop)
        assert stats.free_pages + stats.leased_pages == limits.pages
        if stats.waiting + stats.running and not plan.slices:
            self.count("idle")
            assert stats.encoding_images, "nothing runs and nothing is awaited"
        for piece in plan.slices:
            ticket = self.tickets[piece.uid]
            assert not ticket.ended, "work for a request that has ended"
            assert not {span.key for span in piece.spans} & set(plan.drop), "rows dropped under the step"
            ticket.reached_at = max(ticket.reached_at, piece.end_at)
            assert len(piece.pages) * limits.page_len >= piece.end_at, "the page table is too short"
            for span in ticket.prompt.spans if self.atomic else ():
                assert not any(span.start_at < at < span.end_at for at in (piece.start_at, piece.end_at)), "split span"
        self.count("mixed", 0 < decode_len < plan.token_count)
        self.count("drafted", sum(piece.draft_len for piece in plan.slices))

    def hand_over(self, plan: StepPlan) -> None:
        """Drop, then encode, as the engine does."""
        live = [ticket for ticket in self.tickets.values() if not ticket.ended]
        for key in plan.drop:
            self.count("evicted", key in self.runner.rows and any(ticket.uses(key) for ticket in live))
            self.runner.rows.discard(key)
            self.encoder.cancel(key)
        self.encoder.jobs += plan.encode
        self.encoder.begun |= {key for key in plan.encode if self.rng.random() < 0.5}
        if self.calm:  # nothing is cancelled, so no late landing comes on top
            device_rows = sum(1 + key_number(key) for key in [*self.runner.rows, *self.encoder.jobs])
            assert device_rows <= self.limits.image_rows, "more rows on the device than the capacity"

    def finish(self, plan: StepPlan, result: StepResult) -> None:
        """Commit the step, or let all of it or one slice fail."""
        uids = {piece.uid for piece in plan.slices}
        if not self.calm and self.rng.random() < 0.03:
            self.count("failed steps")
            self.take_events(self.scheduler.fail(plan, RuntimeError("not for clients"), self.now), uids)
            return
        if not self.calm and uids and self.rng.random() < 0.03:
            bad = self.rng.choice(result.slices)
            outcomes = tuple(SliceResult(one.uid, error=ValueError()) if one is bad else one for one in result.slices)
            result, uids = StepResult(result.number, outcomes), {bad.uid}
        else:
            uids = set()
        self.take_events(self.scheduler.commit(plan, result, self.now), uids)

    def propose(self) -> None:
        """Drafts for some requests: right up to a point, then wrong."""
        for uid, ticket in self.tickets.items():
            if ticket.tokens and not ticket.ended and self.rng.random() < 0.4:
                draft = ticket.right[len(ticket.tokens) :][: self.rng.randint(0, 5)]
                draft += [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(0, 3))]
                self.scheduler.propose(uid, tuple(draft))

    def run(self) -> None:
        """Everything to its end, then the oracle."""
        ticks = 0
        while self.to_come or self.scheduler.busy or self.encoder.jobs:
            self.tick()
            ticks += 1
            assert ticks < 400, "no end in sight"
        kept = self.scheduler.stats().kept_images
        assert len(self.runner.rows) == kept and (self.limits.keep_images or not kept), "rows left on the device"
        self.count("kept", kept)
        self.count("image hits", self.scheduler.stats().image_hits)
        self.scheduler.assert_whole()
        assert not self.scheduler.stats().leased_pages and not self.scheduler.stats().landed_rows
        for uid, ticket in self.tickets.items():
            assert len(ticket.terminal) == (not ticket.aborted), f"{uid} did not end exactly once"
            assert ticket.tokens == ticket.right[: len(ticket.tokens)], f"{uid} answers otherwise than alone"
            if ticket.terminal and isinstance(end := ticket.terminal[0], Finished):
                assert (ticket.tokens, end.reason) == (ticket.right, ticket.reason), f"{uid} ended otherwise than alone"
                self.count(end.reason)
        self.count("ticks", ticks)
        self.count("preemptions", self.scheduler.stats().preemptions)


def run_world(seed: int) -> dict[str, int]:
    """Run the workload of this seed; what happened in it. AssertionError for anything that is not exactly right."""
    world = World(seed)
    world.run()
    return world.tallies
