"""Where the vision tower runs: on the caller's thread, on a thread of its own, or in a process of its own.

Owns the three placements behind one small protocol. A worker encodes one image at a time in the order it was given
them, answers each exactly once (`Encoded` or `Lost`) unless it was cancelled before it began, and leaves no thread or
process behind after `close`. An exception costs its image; the death of the process costs the images it held, and the
next job starts another. Refuses to know requests, prompts and which image matters most.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import torch
from torch import Tensor

from foveate.core.errors import EncodeFailed
from foveate.models.interface import VisionTower

log = logging.getLogger(__name__)


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
Reporter = Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class TowerSource:
    """How to make a tower, wherever it is to live: `load()` (picklable), `threads` on the CPU, `place` for the log."""

    load: Callable[[], VisionTower]
    threads: int
    place: str = "cpu"


class Worker(Protocol):
    """A place that encodes. `send` never blocks for an encode; replies arrive through the reporter it was made with."""

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
    except Exception:  # the worker must outlive any one picture
        log.exception("image encode failed (key %s)", key[:12])
        return Lost(key, EncodeFailed("the vision encoder failed on this image"))
    return Encoded(key, rows, start_s, time.monotonic())


class InlineWorker:
    """Encodes on the caller's thread, one image per `advance`: for an encoder that shares the model's device."""

    def __init__(self, source: TowerSource, report: Reporter) -> None:
        self._tower, self._report, self._inbox = source.load(), report, Inbox()

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
            self._report(encode_one(self._tower, *job))
        return job is not None

    def close(self) -> None:
        self._inbox.close()


class ThreadWorker:
    """Encodes on a thread of its own, beside the model's."""

    def __init__(self, source: TowerSource, report: Reporter) -> None:
        self._source, self._report, self._inbox = source, report, Inbox()
        self._tower = source.load()
        self._thread = threading.Thread(target=self._run, name="foveate-encoder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        torch.set_num_threads(self._source.threads)  # OpenMP's thread count belongs to the calling thread
        while (job := self._inbox.take()) is not None:
            self._report(encode_one(self._tower, *job))

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
        self._thread.join()


class ProcessWorker:
    """Encodes in a process of its own: no shared interpreter lock, and its death is not the server's."""

    def __init__(self, source: TowerSource, report: Reporter) -> None:
        self._source, self._report = source, report
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(self._source, theirs), name="foveate-encoder", daemon=True)
        self._process.start()
        theirs.close()
        self._listener = threading.Thread(target=self._listen, args=(self._line,), name="foveate-encoder", daemon=True)
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._listener.start()

    def wait_ready(self) -> None:
        """Block until the tower is loaded; raises what loading raised."""
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _listen(self, line: Connection) -> None:
        while True:
            try:
                message = line.recv()
            except (EOFError, OSError):
                return self._bury()
            if message is None:
                self._ready.set()
            elif isinstance(message, Exception):
                self._failure = message
                self._ready.set()
            else:
                reply = message.unpack() if isinstance(message, _Packed) else message
                with self._lock:
                    self._held.discard(reply.key)
                self._report(reply)

    def _bury(self) -> None:
        """The process is gone: what it held is lost, and nothing else is."""
        with self._lock:
            held, self._held = self._held, set()
        if not self._ready.is_set():
            self._failure = EncodeFailed("the vision encoder's process ended while it was loading")
            self._ready.set()
        if not self._closing:
            log.error("the vision encoder's process ended; %d image(s) lost", len(held))
        for key in held:
            self._report(Lost(key, EncodeFailed("the vision encoder's process ended")))

    def _post(self, message: tuple[str, ...] | tuple[str, str, Any]) -> bool:
        try:
            self._line.send(message)
        except (BrokenPipeError, OSError):
            return False
        return True

    def send(self, key: str, pixels: Any) -> None:
        if not self._listener.is_alive() and not self._closing:
            self._start()
        with self._lock:
            self._held.add(key)
        if not self._post(("encode", key, pixels)):
            with self._lock:
                held = key in self._held
                self._held.discard(key)
            if held:  # otherwise the listener has already reported it
                self._report(Lost(key, EncodeFailed("the vision encoder's process ended")))

    def cancel(self, key: str) -> None:
        self._post(("cancel", key))

    @property
    def pending(self) -> bool:
        return False

    def advance(self) -> bool:
        return False

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def close(self) -> None:
        """Let the image under way finish for a moment, then end the process."""
        self._closing = True
        self._post(("close",))
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._line.close()
        self._listener.join()


def _child(source: TowerSource, line: Connection) -> None:
    """Body of the encoder's process: one thread reads the line so that the parent never waits for an encode."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(source.threads)
    try:
        tower = source.load()
    except Exception as error:  # goes to the parent, which raises it where the server starts
        line.send(error)
        return
    inbox = Inbox()
    threading.Thread(target=_feed, args=(line, inbox), daemon=True).start()
    line.send(None)
    while (job := inbox.take()) is not None:
        reply = encode_one(tower, *job)
        line.send(_pack(reply) if isinstance(reply, Encoded) else reply)


@dataclass(frozen=True, slots=True)
class _Packed:
    """Rows on the wire as plain bytes: torch's own pickling would tie their life to the sending process."""

    key: str
    raw: Any
    dtype: torch.dtype
    start_s: float
    end_s: float

    def unpack(self) -> Encoded:
        rows = torch.from_numpy(self.raw).view(self.dtype)
        return Encoded(self.key, rows, self.start_s, self.end_s)


def _pack(reply: Encoded) -> _Packed:
    raw = reply.rows.detach().cpu().contiguous().view(torch.uint8).numpy()
    return _Packed(reply.key, raw, reply.rows.dtype, reply.start_s, reply.end_s)


def _feed(line: Connection, inbox: Inbox) -> None:
    while True:
        try:
            message = line.recv()
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone; nothing here is worth keeping
        if message[0] == "encode":
            inbox.put(message[1], message[2])
        elif message[0] == "cancel":
            inbox.cancel(message[1])
        else:
            inbox.close()
            return


def open_worker(kind: str, source: TowerSource, report: Reporter) -> Worker:
    """A worker of the kind that `Config.encoder_worker` names: inline, thread or process."""
    kinds: dict[str, Callable[[TowerSource, Reporter], Worker]] = {
        "inline": InlineWorker,
        "thread": ThreadWorker,
        "process": ProcessWorker,
    }
    return kinds[kind](source, report)
