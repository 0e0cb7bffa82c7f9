"""The vision tower in a process of its own: no shared interpreter lock, and its death is not the server's.

Owns that process, the line to it, and its watch. Promises of `encoder_worker.Worker`, and more: the caller never waits
for the line, even while the process is loading or stuck; a process that dies or hangs costs the images that it was
given and no other, and the next image starts another. Refuses to know requests and which image matters most.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from foveate.core.errors import EncodeFailed
from foveate.ops.attention import leave_out_cudnn
from foveate.ops.threads import compute_with
from foveate.run.encoder_worker import CLOSE_S, Began, Encoded, Inbox, Lost, Reporter, TowerSource, encode_one

log = logging.getLogger(__name__)
Message = tuple[str, ...] | tuple[str, str, Any]


class ProcessWorker:
    """A `Worker` that starts its process at once, and again whenever there is work and none is alive."""

    def __init__(self, source: TowerSource, report: Reporter) -> None:
        self._source, self._report = source, report
        self.silent_since_s: float | None = None
        self._lock = threading.Lock()
        self._wanted: set[str] = set()  # sent, not answered, not cancelled
        self._posted: set[str] = set()  # of these, what the living process was given
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._closing = False
        self._failure: Exception | None = None
        self._start()
        self._poster = threading.Thread(target=self._post_all, name="foveate-encoder-post", daemon=True)
        self._poster.start()

    def wait_ready(self) -> None:
        """Block until the tower is loaded; raises what loading raised."""
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def send(self, key: str, pixels: Any) -> None:
        with self._lock:
            self._wanted.add(key)
            if self.silent_since_s is None:
                self.silent_since_s = time.monotonic()
        self._outbox.put(("encode", key, pixels))

    def cancel(self, key: str) -> None:
        self._settle(key)
        self._outbox.put(("cancel", key))

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
        self._outbox.put(("close",))
        self._outbox.put(None)
        self._process.join(CLOSE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._poster.join()
        self._listener.join()
        self._line.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(self._source, theirs), name="foveate-encoder", daemon=True)
        self._process.start()
        theirs.close()
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="foveate-encoder", daemon=True)
        self._listener.start()

    def _post_all(self) -> None:
        """Runs on a thread of its own: the line blocks while the process loads or hangs, and the caller must not."""
        while (message := self._outbox.get()) is not None:
            if message[0] == "encode":
                self._post_job(message)
            else:
                self._post(message)

    def _post_job(self, message: Message) -> None:
        key = message[1]
        for _ in range(2):
            if not self._listener.is_alive() and not self._closing:
                self._line.close()
                self._start()
            with self._lock:
                if key not in self._wanted:
                    return
                self._posted.add(key)
            if self._post(message):
                return
            with self._lock:  # the process has just died without having seen this one, so another may have it
                self._posted.discard(key)
            self._listener.join()
        self._lose({key})

    def _post(self, message: Message) -> bool:
        try:
            self._line.send(message)
        except (BrokenPipeError, OSError):
            return False
        return True

    def _listen(self) -> None:
        """Runs on a thread of its own for as long as one process lives."""
        beat_s = min(30.0, self._source.patience_s / 4)
        while True:
            try:
                if self._line.poll(beat_s):
                    self._hear(self._line.recv())
                elif self._is_hung():
                    log.error("the vision encoder gave no sign for %g s; ending its process", self._source.patience_s)
                    self._process.kill()
            except (EOFError, OSError):
                return self._bury()

    def _is_hung(self) -> bool:
        since_s = self.silent_since_s if self._ready.is_set() else None  # loading takes as long as it takes
        return since_s is not None and time.monotonic() - since_s > self._source.patience_s

    def _hear(self, message: Any) -> None:
        if message is None:
            with self._lock:
                self.silent_since_s = time.monotonic() if self._wanted else None
            self._ready.set()
        elif isinstance(message, Exception):
            self._failure = message
            self._ready.set()
        elif isinstance(message, Began):
            self._report(message)
        else:
            reply = message.unpack() if isinstance(message, _Packed) else message
            self._settle(reply.key)
            self._report(reply)

    def _settle(self, key: str) -> bool:
        """This key needs no answer any more; whether it still did."""
        with self._lock:
            wanted = key in self._wanted
            self._wanted.discard(key)
            self._posted.discard(key)
            self.silent_since_s = time.monotonic() if self._wanted else None
        return wanted

    def _bury(self) -> None:
        """The process is gone: what it was given is lost, and nothing else is."""
        with self._lock:
            lost = set(self._posted)
        if not self._ready.is_set():
            self._failure = EncodeFailed("the vision encoder's process ended while it was loading")
            self._ready.set()
        if not self._closing:
            log.error("the vision encoder's process ended; %d image(s) lost", len(lost))
        self._lose(lost)

    def _lose(self, keys: set[str]) -> None:
        for key in keys:
            if self._settle(key):
                self._report(Lost(key, EncodeFailed("the vision encoder's process ended")))


def _child(source: TowerSource, line: Connection) -> None:
    """Body of the encoder's process: one thread reads the line so that the parent never waits for an encode."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    compute_with(source.threads)
    leave_out_cudnn()
    try:
        tower = source.load()
    except Exception as error:  # goes to the parent, which raises it where the server starts
        line.send(error)
        return
    inbox = Inbox()
    threading.Thread(target=_feed, args=(line, inbox), daemon=True).start()
    line.send(None)
    while (job := inbox.take()) is not None:
        line.send(Began(job[0], time.monotonic()))
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
