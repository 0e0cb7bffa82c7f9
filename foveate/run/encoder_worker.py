"""Where the vision tower runs: on the caller's thread or on a thread of its own (`encoder_process.py`: in a process).

Owns the protocol that all placements share. A worker encodes one image at a time in the order it was given them,
answers each exactly once (`Encoded` or `Lost`) unless it was cancelled before it began, says `Began` before that where
it works beside the caller, and leaves no thread or process behind after `close`. An exception costs its image. Refuses
to know requests, prompts and which image matters most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from foveate.core.errors import EncodeFailed
from foveate.models.interface import VisionTower
from foveate.ops.threads import compute_with

log = logging.getLogger(__name__)
CLOSE_S = 5.0  # for the image under way


@dataclass(frozen=True, slots=True)
class Began:
    """The encode of an image is under way since `start_s` (seconds of time.monotonic, one clock per machine)."""

    key: str
    start_s: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows of one image [rows, hidden], and when it was encoded (seconds of time.monotonic, one clock per machine)."""

    key: str
    rows: Tensor
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """An image that could not be decoded or encoded; `error` is public."""

    key: str
    error: Exception


Reply = Encoded | Lost
Reporter = Callable[[Began | Reply], None]


@dataclass(frozen=True, slots=True)
class TowerSource:
    """How to make a tower, wherever it is to live.

    load: makes it; picklable. threads: of the CPU. place: for the log. patience_s: how long it may be silent over its
    work before it counts as hung.
    """

    load: Callable[[], VisionTower]
    threads: int
    place: str = "cpu"
    patience_s: float = 300.0


class Worker(Protocol):
    """A place that encodes. `send` never blocks for an encode; replies arrive through the reporter it was made with.

    `silent_since_s` is when it last gave a sign, on time.monotonic, while it has work; None while it has none.
    """

    silent_since_s: float | None

    def send(self, key: str, pixels: Any) -> None: ...

    def cancel(self, key: str) -> None: ...

    @property
    def pending(self) -> bool:
        """Whether `advance` has something to do."""
        ...

    def advance(self) -> bool:
        """Encode one image on the caller's thread, if this is the worker for that; whether it did."""
        ...

    def close(self) -> None: ...


class Inbox:
    """Jobs in order, fed by one thread and taken by another; closing it lets the taker go home."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[str, Any]] = deque()
        self._ready = threading.Condition()
        self._closed = False

    def put(self, key: str, pixels: Any) -> None:
        with self._ready:
            self._jobs.append((key, pixels))
            self._ready.notify()

    def cancel(self, key: str) -> None:
        with self._ready:
            self._jobs = deque(job for job in self._jobs if job[0] != key)

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._jobs.clear()
            self._ready.notify()

    def __len__(self) -> int:
        return len(self._jobs)

    def take(self, wait: bool = True) -> tuple[str, Any] | None:
        """The next job; None when closed, or when there is none and `wait` is false."""
        with self._ready:
            while wait and not self._jobs and not self._closed:
                self._ready.wait()
            return self._jobs.popleft() if self._jobs else None


@torch.inference_mode()
def encode_one(tower: VisionTower, key: str, pixels: Any) -> Reply:
    """Encode one image; whatever goes wrong is this image's loss and nobody else's."""
    start_s = time.monotonic()
    try:
        rows = tower.encode([pixels])[0]
        if rows.is_cuda:
            torch.cuda.current_stream(rows.device).synchronize()
            # Made on the encoder's stream, read on the model's: not to be overwritten before that has happened.
            rows.record_stream(torch.cuda.default_stream(rows.device))
    except Exception:  # the worker must outlive any one picture
        log.exception("image encode failed (key %s)", key[:12])
        return Lost(key, EncodeFailed("the vision encoder failed on this image"))
    return Encoded(key, rows, start_s, time.monotonic())


class InlineWorker:
    """Encodes on the caller's thread, one image per `advance`: for an encoder that shares the model's device."""

    def __init__(self, source: TowerSource, report: Reporter) -> None:
        self._tower, self._report, self._inbox = source.load(), report, Inbox()
        self.silent_since_s: float | None = None

    def send(self, key: str, pixels: Any) -> None:
        self._inbox.put(key, pixels)

    def cancel(self, key: str) -> None:
        self._inbox.cancel(key)

    @property
    def pending(self) -> bool:
        return len(self._inbox) > 0

    def advance(self) -> bool:
        job = self._inbox.take(wait=False)
        if job is not None:
            self.silent_since_s = time.monotonic()
            self._report(encode_one(self._tower, *job))
            self.silent_since_s = None
        return job is not None

    def close(self) -> None:
        self._inbox.close()


def _own_stream(place: str) -> AbstractContextManager[Any]:
    """A stream of this thread's own on a GPU, so that its work does not queue behind the model's there."""
    if not place.startswith("cuda"):
        return nullcontext()
    stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.default_stream(place))  # the weights may still be on their way
    return torch.cuda.stream(stream)


class ThreadWorker:
    """Encodes on a thread of its own, beside the model's."""

    def __init__(self, source: TowerSource, report: Reporter) -> None:
        self._source, self._report, self._inbox = source, report, Inbox()
        self._tower = source.load()
        self.silent_since_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="foveate-encoder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        compute_with(self._source.threads)
        with _own_stream(self._source.place):
            while (job := self._inbox.take()) is not None:
                self.silent_since_s = time.monotonic()
                self._report(Began(job[0], self.silent_since_s))
                self._report(encode_one(self._tower, *job))
                self.silent_since_s = None

    def send(self, key: str, pixels: Any) -> None:
        self._inbox.put(key, pixels)

    def cancel(self, key: str) -> None:
        self._inbox.cancel(key)

    @property
    def pending(self) -> bool:
        return False

    def advance(self) -> bool:
        return False

    def close(self) -> None:
        self._inbox.close()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.error("the vision encoder does not end its image; leaving its thread behind")
