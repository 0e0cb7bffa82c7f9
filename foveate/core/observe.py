"""What the server can tell about itself: gauges of this moment, and what was counted since it started.

Owns the counting. Whoever runs the engine feeds one `Counters` (a call per ended request and per step, from any
thread) and hands out frozen `Snapshot`s; whoever shows numbers reads those. Standard library only; knows no metric
names of any monitoring system, no HTTP and no clock: every duration is passed in, in seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from threading import Lock
from types import MappingProxyType

from foveate.core.values import ImageTiming, Timings

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WORK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (1.0, *(2.0**power for power in range(3, 18)))
_IMAGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)

SPREADS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "queue_s": _LATENCY_S,
        "first_token_s": _LATENCY_S,
        "total_s": _LATENCY_S,
        "prefill_s": _LATENCY_S,
        "inference_s": _LATENCY_S,
        "generation_s": _LATENCY_S,
        "token_gap_s": _WORK_S,
        "per_token_s": _WORK_S,
        "image_decode_s": _WORK_S,
        "image_queue_s": _WORK_S,
        "image_encode_s": _WORK_S,
        "prompt_tokens": _TOKENS,
        "output_tokens": _TOKENS,
        "images": _IMAGES,
        "step_s": _WORK_S,
        "step_tokens": _TOKENS,
    }
)
"""Every distribution that is kept, with the upper bounds of its buckets."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """The engine at one moment. `waiting` includes requests whose pictures are still being decoded.

    The last two count since the start: images of requests, and those of them that others had brought before.
    """

    running: int = 0
    waiting: int = 0
    waiting_image_rows: int = 0
    pages: int = 0
    pages_used: int = 0
    slots: int = 0
    slots_used: int = 0
    image_rows: int = 0
    image_rows_used: int = 0
    images_encoding: int = 0
    image_rows_kept: int = 0
    image_lookups: int = 0
    image_hits: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer that ended by itself or by its client: `reason` is 'stop', 'length' or 'abort'.

    With several choices each is an answer of its own. `total_s` runs from arrival to the last token; so does
    `timings.first_token_s` to the first.
    """

    reason: str
    prompt_tokens: int
    image_tokens: int
    output_tokens: int
    total_s: float
    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the start, over ended answers; `steps` over all steps."""

    prompt_tokens: int = 0
    image_tokens: int = 0
    output_tokens: int = 0
    images: int = 0
    preemptions: int = 0
    steps: int = 0
    waited_s: float = 0.0
    hidden_s: float = 0.0
    decode_steps: int = 0
    draft_steps: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution: `counts[i]` values were at most `bounds[i]` and above the bound before; the last has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything there is to show, frozen.

    `finished` counts by reason, `failed` by error code, `accepted_at` the guesses that were right by their depth.
    """

    gauges: Gauges
    totals: Totals
    finished: Mapping[str, int]
    failed: Mapping[str, int]
    spreads: Mapping[str, Spread]
    accepted_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request at one moment, or as it ended. `state` is one of STATES; times are in seconds since it arrived.

    `prepare_s` went before that: reading its pictures and rendering its prompt.
    """

    id: str
    state: str
    prompt_tokens: int
    output_tokens: int
    elapsed_s: float
    prepare_s: float = 0.0
    timings: Timings = field(default_factory=Timings)


STATES = ("prepare", "queued", "encode", "prefill", "generate", "stop", "length", "abort", "failed")
"""What a live request is at ('encode': prefill waits for image rows), or how it ended."""


@dataclass(frozen=True, slots=True)
class Live:
    """The server at one moment: gauges, requests under way, and the last ones that ended, newest first."""

    gauges: Gauges
    requests: tuple[RequestView, ...] = ()
    recent: tuple[RequestView, ...] = ()


class Counters:
    """Counts what happened since the start. Safe to call from any thread; every call is short."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._totals = Totals()
        self._finished = {"stop": 0, "length": 0, "abort": 0}
        self._failed: dict[str, int] = {}
        self._accepted_at: list[int] = []
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in SPREADS.items()}
        self._sums = dict.fromkeys(SPREADS, 0.0)

    def finished(self, outcome: Outcome) -> None:
        """Count an answer that ended with reason 'stop', 'length' or 'abort'."""
        timings = outcome.timings
        with self._lock:
            self._finished[outcome.reason] += 1
            old = self._totals
            self._totals = replace(
                old,
                prompt_tokens=old.prompt_tokens + outcome.prompt_tokens,
                image_tokens=old.image_tokens + outcome.image_tokens,
                output_tokens=old.output_tokens + outcome.output_tokens,
                images=old.images + len(timings.images),
                preemptions=old.preemptions + timings.preemptions,
                waited_s=old.waited_s + timings.waited_s,
                hidden_s=old.hidden_s + timings.hidden_s,
                decode_steps=old.decode_steps + timings.decode_steps,
                draft_steps=old.draft_steps + timings.draft_steps,
                drafted=old.drafted + timings.drafted,
                accepted=old.accepted + sum(timings.accepted),
            )
            pairs = zip_longest(self._accepted_at, timings.accepted, fillvalue=0)
            self._accepted_at = [sum(pair) for pair in pairs]
            self._put("prompt_tokens", outcome.prompt_tokens)
            self._put("output_tokens", outcome.output_tokens)
            self._put("images", len(timings.images))
            for image in timings.images:
                self._image(image)
            if outcome.output_tokens:
                self._latencies(outcome)

    def failed(self, code: str) -> None:
        """Count an answer that failed inside the server; `code` is the error's."""
        with self._lock:
            self._failed[code] = self._failed.get(code, 0) + 1

    def stepped(self, seconds: float, tokens: int) -> None:
        """Count one step of the model over `tokens` tokens."""
        with self._lock:
            self._totals = replace(self._totals, steps=self._totals.steps + 1)
            self._put("step_s", seconds)
            self._put("step_tokens", tokens)

    def paused(self, seconds: float) -> None:
        """Count the time between tokens of an answer and the ones before; tokens of one step come at once."""
        with self._lock:
            self._put("token_gap_s", seconds)

    def snapshot(self, gauges: Gauges) -> Snapshot:
        """All counts so far beside the given gauges."""
        with self._lock:
            return Snapshot(
                gauges=gauges,
                totals=self._totals,
                finished=dict(self._finished),
                failed=dict(self._failed),
                accepted_at=tuple(self._accepted_at),
                spreads={
                    name: Spread(bounds, tuple(self._counts[name]), self._sums[name])
                    for name, bounds in SPREADS.items()
                },
            )

    def _latencies(self, outcome: Outcome) -> None:
        timings = outcome.timings
        self._put("queue_s", timings.queued_s)
        self._put("first_token_s", timings.first_token_s)
        self._put("total_s", outcome.total_s)
        self._put("prefill_s", timings.prefill_s)
        self._put("inference_s", max(0.0, outcome.total_s - timings.queued_s))
        self._put("generation_s", timings.generation_s)
        if outcome.output_tokens > 1:
            self._put("per_token_s", timings.generation_s / (outcome.output_tokens - 1))

    def _image(self, image: ImageTiming) -> None:
        if image.decode_start_s is not None and image.decode_end_s is not None:
            self._put("image_decode_s", image.decode_end_s - image.decode_start_s)
        if image.decode_end_s is not None and image.encode_start_s is not None:
            # Encoded for an earlier request: it waited for nothing.
            self._put("image_queue_s", max(0.0, image.encode_start_s - image.decode_end_s))
        if image.encode_start_s is not None and image.encode_end_s is not None:
            self._put("image_encode_s", image.encode_end_s - image.encode_start_s)

    def _put(self, name: str, value: float) -> None:
        self._counts[name][bisect_left(SPREADS[name], value)] += 1
        self._sums[name] += value
