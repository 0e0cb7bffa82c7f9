"""The encoder stream: pictures go in as bytes, rows come out image by image, beside the language model.

Owns the path of one picture: decoded on a pool as soon as its request runs, ahead of the encoder; encoded when the
plan says so, in the plan's order; its rows handed out by `poll`. Promises that every submitted key is answered once
with `Encoded` or `Lost` unless it was cancelled, and that `close` leaves nothing running. What crosses this seam is
picklable, so that the other end may live in another process or on another machine.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foveate.core.errors import EncodeFailed, InvalidImage
from foveate.core.values import Frame, PixelSource
from foveate.run.encoder_process import ProcessWorker
from foveate.run.encoder_worker import (
    Began,
    Encoded,
    InlineWorker,
    Lost,
    Reply,
    Reporter,
    ThreadWorker,
    TowerSource,
    Worker,
)

KEEP_BYTES = 512 * 2**20  # decoded pictures held ahead of the encoder; beyond it they are decoded again in their turn


@dataclass(frozen=True, slots=True)
class Decoded:
    """A picture has been decoded in full, so it is sound; seconds of time.monotonic."""

    key: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Picture:
    """What the stream knows of one key. `pixels` is None until decoded (and after it was handed on or let go)."""

    source: PixelSource
    decoding: bool = False
    pixels: Any = None
    sound: bool = False
    submitted: bool = False


@dataclass(slots=True)
class _Shelf:
    """State shared by the loop's thread, the decoding threads and the worker's; every access holds `lock`."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    pictures: dict[str, _Picture] = field(default_factory=dict)
    order: deque[str] = field(default_factory=deque)
    out: deque[Decoded | Began | Reply] = field(default_factory=deque)
    kept_bytes: int = 0


class EncoderStream:
    """Decodes and encodes pictures for one engine; its methods are for that engine's thread and never wait."""

    def __init__(self, kind: str, tower: TowerSource, decode_workers: int, notify: Callable[[], None]) -> None:
        """`notify` is called from other threads whenever `poll` has something to tell."""
        self.place = tower.place if kind == "inline" else f"{tower.place} ({kind})"
        self.submitted = 0  # pictures put into the encode order so far
        self._notify, self._shelf, self._patience_s = notify, _Shelf(), tower.patience_s
        self._pool = ThreadPoolExecutor(decode_workers, thread_name_prefix="foveate-decode")
        self._read = reader(tower.place, kind)
        self.worker: Worker = open_worker(kind, tower, self._report)

    def prepare(self, source: PixelSource) -> None:
        """Start decoding a picture; `poll` will say `Decoded` or `Lost`. A picture that is known is left alone."""
        with self._shelf.lock:
            picture = self._shelf.pictures.setdefault(source.key, _Picture(source))
            if picture.sound:
                self._shelf.out.append(Decoded(source.key, time.monotonic(), time.monotonic()))
                self._notify()  # or the loop, which has just looked, would learn of it with the next letter only
            elif not picture.decoding:
                self._decode(picture)

    def submit(self, source: PixelSource) -> None:
        """Put a picture into the encode order; it is decoded first if it has not been."""
        with self._shelf.lock:
            picture = self._shelf.pictures.setdefault(source.key, _Picture(source))
            assert not picture.submitted, "a key is encoded once at a time"
            picture.submitted = True
            self.submitted += 1
            self._shelf.order.append(source.key)
            if picture.pixels is None and not picture.decoding:
                self._decode(picture)
            self._pump()

    def cancel(self, key: str) -> None:
        """Nobody needs this key any more: what has not begun will not begin, and an answer not yet told is dropped."""
        with self._shelf.lock:
            self._shelf.out = deque(one for one in self._shelf.out if one.key != key or isinstance(one, Decoded))
            picture = self._shelf.pictures.pop(key, None)
            if picture is None:
                return
            self._let_go(picture)
            if key in self._shelf.order:
                self._shelf.order.remove(key)
            elif picture.submitted:
                self.worker.cancel(key)

    @property
    def is_hung(self) -> bool:
        """Whether the worker has given no sign over its work for longer than it may."""
        since_s = self.worker.silent_since_s
        return since_s is not None and time.monotonic() - since_s > self._patience_s

    @property
    def inline_work(self) -> bool:
        """Whether `poll` would encode an image on the caller's thread now."""
        return self.worker.pending

    def poll(self) -> list[Decoded | Began | Reply]:
        """What has happened since the last call, in order; on the model's own device this encodes one image."""
        self.worker.advance()
        with self._shelf.lock:
            out, self._shelf.out = list(self._shelf.out), deque()
        return out

    def close(self) -> None:
        """Finish at the next image boundary and leave no thread or process behind."""
        with self._shelf.lock:
            self._shelf.order.clear()
            self._shelf.pictures.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.worker.close()

    def _decode(self, picture: _Picture) -> None:
        picture.decoding = True
        self._pool.submit(self._decode_one, picture)

    def _decode_one(self, picture: _Picture) -> None:
        """Runs on the pool."""
        key, start_s = picture.source.key, time.monotonic()
        if self._shelf.pictures.get(key) is not picture:
            return  # cancelled before its turn
        try:
            pixels = self._read(picture.source)
        except InvalidImage as error:
            return self._report(Lost(key, error))
        except Exception:  # a decoder's surprise is the picture's fault, never the pool's
            return self._report(Lost(key, InvalidImage("the picture could not be decoded")))
        with self._shelf.lock:
            picture.decoding, first, picture.sound = False, not picture.sound, True
            if self._shelf.pictures.get(key) is picture:
                if picture.submitted or self._shelf.kept_bytes + pixels.nbytes <= KEEP_BYTES:
                    picture.pixels = pixels
                    self._shelf.kept_bytes += pixels.nbytes
                if first:
                    self._shelf.out.append(Decoded(key, start_s, time.monotonic()))
                self._pump()
        self._notify()

    def _pump(self) -> None:
        """Hand the worker every picture at the head of the order that is decoded. Holds the lock."""
        while self._shelf.order:
            picture = self._shelf.pictures[self._shelf.order[0]]
            if picture.pixels is None:
                if not picture.decoding:
                    self._decode(picture)
                return
            key, pixels = self._shelf.order.popleft(), picture.pixels
            self._let_go(picture)
            self.worker.send(key, pixels)

    def _let_go(self, picture: _Picture) -> None:
        if picture.pixels is not None:
            self._shelf.kept_bytes -= picture.pixels.nbytes
            picture.pixels = None

    def _report(self, reply: Began | Reply) -> None:
        """A worker's or decoder's word, from any thread."""
        with self._shelf.lock:
            if isinstance(reply, Began):
                if reply.key in self._shelf.pictures:
                    self._shelf.out.append(reply)
                return self._notify()
            picture = self._shelf.pictures.pop(reply.key, None)
            if picture is not None:
                # Decoded again while an answer to an earlier, cancelled submission was still on its way.
                self._let_go(picture)
                if reply.key in self._shelf.order:  # its decoding failed before its turn
                    self._shelf.order.remove(reply.key)
                reply = _checked(reply, picture.source)
                self._shelf.out.append(reply)
                self._pump()
        self._notify()


def reader(place: str, kind: str) -> Callable[[PixelSource], Any]:
    """How pictures are decoded for an encoder at this place: resizing is left to a GPU, and what a thread of this
    process will copy there comes in pinned memory, from which copies neither wait nor stage.
    """
    if not place.startswith("cuda"):
        return lambda source: source.pixels()
    return (lambda source: source.frame()) if kind == "process" else (lambda source: _pinned(source.frame()))


def _pinned(decoded: Any) -> Any:
    if isinstance(decoded, Frame):
        return replace(decoded, pixels=_pinned(decoded.pixels))
    pinned = torch.empty(decoded.shape, dtype=torch.uint8, pin_memory=True)
    pinned.numpy()[...] = decoded
    return pinned


def _checked(reply: Reply, source: PixelSource) -> Reply:
    """The count of rows was promised from the header: another count may not reach the model."""
    if isinstance(reply, Encoded) and len(reply.rows) != source.rows:
        return Lost(reply.key, EncodeFailed(f"the encoder gave {len(reply.rows)} rows for {source.rows} tokens"))
    return reply


def open_worker(kind: str, source: TowerSource, report: Reporter) -> Worker:
    """A worker of the kind that `Config.encoder_worker` names: inline, thread or process."""
    kinds: dict[str, Callable[[TowerSource, Reporter], Worker]] = {
        "inline": InlineWorker,
        "thread": ThreadWorker,
        "process": ProcessWorker,
    }
    return kinds[kind](source, report)
