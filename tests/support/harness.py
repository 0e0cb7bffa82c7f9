"""A synchronous engine for tests: the real scheduler, runner and tower, with every landing under the test's control.

Owns a loop without threads and clocks, in which the test says at which step which image lands, who leaves, and what
limits hold. Time is the number of the step. What it returns are the tokens of each request and its terminal event.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foveate.core.values import Ending, Event, Failed, Finished, ImageRules, Output, Prompt, Sampling, Timings
from foveate.models.interface import LanguageModel, VisionTower
from foveate.models.registry import describe, load_text, load_vision
from foveate.prompt.layout import lay_out
from foveate.run.cache import allocate, joined
from foveate.run.draft import Drafter
from foveate.run.embeds import RowStore
from foveate.run.runner import Runner
from foveate.sched.scheduler import Limits, Scheduler
from foveate.sched.speculate import DraftLimits, Speculation
from tests.support.tiny import IMAGE_PAD, VISION_END, VISION_START, make_tiny
from tests.support.tiny_v4 import make_tiny_v4

ROOMY = Limits(
    slots=8,
    pages=400,
    page_len=8,
    max_ctx=2000,
    step_tokens=512,
    mixed_tokens=512,
    image_rows=2000,
    stream=True,
    encode_ahead=2,
    queue_requests=100,
    queue_image_rows=100_000,
    queue_bytes=10**9,
    bypass=4,
)
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Patch:
    """A random picture of `grid` patches, as a pixel source."""

    key: str
    grid: tuple[int, int]
    seed: int = 0

    @property
    def rows(self) -> int:
        return self.grid[0] * self.grid[1] // 4

    def pixels(self) -> Any:
        down, across = self.grid
        return np.random.RandomState(self.seed).randint(0, 256, (down * 16, across * 16, 3)).astype(np.uint8)


@dataclass(frozen=True)
class Job:
    """One request of a workload; it arrives at step `at` and leaves, if ever, at step `leaves_at`."""

    prompt: Prompt
    pictures: tuple[Patch, ...] = ()
    sampling: Sampling = GREEDY
    ending: Ending = field(default_factory=lambda: Ending(12))
    at: int = 0
    leaves_at: int | None = None

    def __hash__(self) -> int:
        return hash((self.prompt.tokens, self.prompt.spans, self.sampling, self.ending))


@dataclass
class Outcome:
    """What became of a job."""

    tokens: list[int] = field(default_factory=list)
    end: Event | None = None
    timings: Timings = field(default_factory=Timings)

    @property
    def preemptions(self) -> int:
        return self.timings.preemptions


@cache
def tiny(kind: str = "dense", seed: int = 0) -> tuple[LanguageModel, VisionTower, Path]:
    """A tiny model of a kind, loaded once a session."""
    import tempfile

    make = make_tiny_v4 if kind.startswith("v4") else make_tiny
    folder = make(Path(tempfile.mkdtemp(prefix="foveate-tiny-")), kind, seed)
    # A model without eyes has no tower, and no test of one asks for it.
    tower: Any = load_vision(folder, "cpu", torch.float32) if describe(folder).image_rules is not None else None
    return load_text(folder, "cpu", torch.float32), tower, folder


def rules() -> ImageRules:
    half = (0.5, 0.5, 0.5)
    return ImageRules(16, 2, 1024, 65536, half, half)


def make_job(seed: int, images: int, text_len: int = 20, **extra: Any) -> Job:
    """A prompt of random text with `images` pictures of random grids at random places; equal seeds, equal jobs."""
    rng = random.Random(seed)
    pictures = tuple(
        Patch(f"{seed}-{i}", (2 * rng.randint(1, 5), 2 * rng.randint(1, 5)), rng.randrange(10**6))
        for i in range(images)
    )
    cuts = sorted(rng.randint(1, text_len - 1) for _ in range(images))
    ids: list[int] = []
    for at, token in enumerate(rng.randrange(256) for _ in range(text_len)):
        for _ in range(cuts.count(at)):
            ids += [VISION_START, IMAGE_PAD, VISION_END]
        ids.append(token)
    return Job(lay_out(ids, IMAGE_PAD, pictures, 2), pictures, **extra)


Landing = Callable[[int, list[str]], list[str]]


def at_once(step: int, submitted: list[str]) -> list[str]:
    """Every image lands as soon as it was submitted."""
    return submitted


def late(seed: int, chance: float = 0.25) -> Landing:
    """Images land at random steps in random order."""
    rng = random.Random(seed)
    return lambda step, submitted: [key for key in submitted if rng.random() < chance]


class Drive:
    """Runs jobs to their ends on one tiny model under one set of limits."""

    def __init__(
        self,
        kind: str = "dense",
        limits: Limits = ROOMY,
        landing: Landing = at_once,
        drafter: Drafter | None = None,
        drafts: DraftLimits | None = None,
        **change: Any,
    ) -> None:
        """`drafter` guesses within `drafts`; without the latter nobody is ever asked."""
        self.model, self.tower, _ = tiny(kind)
        self.limits = replace(limits, **change)
        self.landing = landing
        self.scheduler = Scheduler(self.limits, None if drafts is None else Speculation(drafts))
        spec = self.model.memory_spec() if drafter is None else joined(self.model.memory_spec(), drafter.memory_spec())
        memory = allocate(spec, self.limits.pages, self.limits.page_len, self.limits.slots, "cpu")
        _poison(memory.paged.values())
        _poison(memory.state.values())
        self.runner = Runner(self.model, memory, RowStore("cpu", torch.float32), "cpu", drafter)
        self.encodes = 0
        self.plans: list[Any] = []

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcome of each job; asserts that all memory is back in its pools at the end."""
        outcomes = [Outcome() for _ in jobs]
        pictures = {picture.key: picture for job in jobs for picture in job.pictures}
        submitted: list[str] = []
        for step in range(20_000):
            now = float(step)
            for uid, job in enumerate(jobs):
                if job.at == step:
                    self.scheduler.submit(uid, job.prompt, job.sampling, job.ending, now)
                if job.leaves_at == step:
                    self.scheduler.abort(uid)
                    outcomes[uid].end = outcomes[uid].end or Finished(uid, "abort")
            for key in self.landing(step, list(submitted)):
                submitted.remove(key)
                self._land(pictures[key], now)
            self._step(now, submitted, outcomes)
            if not self.scheduler.busy and all(step >= job.at for job in jobs):
                break
        else:
            raise AssertionError("no progress")
        self.scheduler.assert_whole()
        assert len(self.runner.rows) == 0, "image rows are left"
        return outcomes

    def _land(self, picture: Patch, now: float) -> None:
        self.encodes += 1
        with torch.inference_mode():
            self.runner.rows.put(picture.key, self.tower.encode([picture.pixels()])[0])
        self.scheduler.landed(picture.key, now)

    def _step(self, now: float, submitted: list[str], outcomes: list[Outcome]) -> None:
        plan = self.scheduler.plan(now)
        self.plans.append(plan)
        for key in plan.drop:
            self.runner.rows.drop(key)
            if key in submitted:
                submitted.remove(key)
        submitted.extend(plan.encode)
        if not plan.slices:
            return
        self._publish(self.scheduler.commit(plan, self.runner.execute(plan), now + 0.5), outcomes)
        if self.runner.drafter is None:
            return
        for guess in self.runner.draft(self.scheduler.wishes()):
            self.scheduler.propose(guess.uid, guess.tokens, guess.parents, guess.confidence)

    def _publish(self, events: list[Event], outcomes: list[Outcome]) -> None:
        for event in events:
            outcome = outcomes[event.uid]
            if isinstance(event, Output):
                outcome.tokens += event.tokens
            elif isinstance(event, (Finished, Failed)):
                assert outcome.end is None, "two terminal events"
                outcome.end = event
                outcome.timings = event.timings if isinstance(event, Finished) else Timings()


def _poison(tensors: Any) -> None:
    """Memory that nobody wrote must never be read: fill it with NaN instead of zeros."""
    for tensor in tensors:
        tensor.fill_(float("nan"))
