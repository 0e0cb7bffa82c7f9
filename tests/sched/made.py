"""Small things that the scheduler's tests are made of: limits, prompts with images, and a runner that says yes."""

from __future__ import annotations

from dataclasses import replace

from foveate.core.plan import SliceResult, StepPlan, StepResult
from foveate.core.values import Ending, Event, Prompt, Sampling, Span, plain_positions
from foveate.sched.admission import Limits
from foveate.sched.request import Account, Request
from foveate.sched.scheduler import Scheduler

PLACEHOLDER = 99
GREEDY = Sampling(temperature=0.0)
ROOMY = Limits(
    slots=8,
    pages=100,
    page_len=4,
    max_ctx=400,
    step_tokens=64,
    mixed_tokens=32,
    image_rows=100,
    stream=True,
    queue_requests=100,
    queue_image_rows=10_000,
    queue_bytes=10_000,
    bypass=2,
)


def made_limits(**changes: int | bool) -> Limits:
    return replace(ROOMY, **changes)  # type: ignore[arg-type]


def made_prompt(*parts: int | tuple[str, int], atomic: bool = False) -> Prompt:
    """Numbers are lengths of text, pairs are images by key and rows; the text's ids count up from 0."""
    tokens, spans = list[int](), list[Span]()
    for part in parts:
        if isinstance(part, int):
            tokens += range(len(tokens), len(tokens) + part)
        else:
            key, rows = part
            spans.append(Span(key, len(tokens), rows, (2, 2 * rows), atomic))
            tokens += [PLACEHOLDER] * rows
    return Prompt(tuple(tokens), plain_positions(len(tokens)), tuple(spans))


def made_request(
    *parts: int | tuple[str, int], uid: int = 1, max_new: int = 10, sampling: Sampling = GREEDY, atomic: bool = False
) -> Request:
    return Request(uid, made_prompt(*parts, atomic=atomic), sampling, Ending(max_new), Account(0.0))


class Rig:
    """A scheduler with a clock of one second a call and a runner that always draws token 7."""

    def __init__(self, **changes: int | bool) -> None:
        self.scheduler = Scheduler(made_limits(**changes))
        self.now = 0.0
        self.events: list[Event] = []

    def submit(self, uid: int, *parts: int | tuple[str, int], max_new: int = 10, atomic: bool = False) -> None:
        self.scheduler.submit(uid, made_prompt(*parts, atomic=atomic), GREEDY, Ending(max_new), self.now)

    def plan(self) -> StepPlan:
        self.now += 1
        return self.scheduler.plan(self.now)

    def commit(self, plan: StepPlan, *tokens: int) -> list[Event]:
        """Commit with the same tokens for every slice that draws."""
        self.now += 1
        outcomes = tuple(SliceResult(p.uid, (tokens or (7,)) if p.draw else ()) for p in plan.slices)
        events = self.scheduler.commit(plan, StepResult(plan.number, outcomes), self.now)
        self.events += events
        self.scheduler.assert_whole()
        return events

    def step(self) -> StepPlan:
        plan = self.plan()
        self.commit(plan)
        return plan

    def land(self, *keys: str) -> None:
        for key in keys:
            self.scheduler.landed(key, self.now)


def taken(plan: StepPlan) -> dict[int, int]:
    """Tokens by uid, in the order of the slices."""
    return {piece.uid: len(piece.tokens) for piece in plan.slices}


def decoding(rig: Rig, *uids: int) -> None:
    """Let each of these, of four prompt tokens, come to its first token."""
    for uid in uids:
        rig.submit(uid, 4, max_new=50)
    rig.step()
