"""Answers that come late, from an encode whose request has gone, when the same picture is wanted again; and hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import torch

from foveate.core.errors import EncodeFailed
from foveate.run.encoder import Decoded, EncoderStream
from foveate.run.encoder_worker import Encoded, Lost, TowerSource
from tests.run.test_encoder import Bench, MeanTower, Square


class SlowTower(MeanTower):
    """Waits at its gate before each image."""

    gate = threading.Semaphore(0)
    began = threading.Event()

    def encode(self, pixels: list[Any]) -> list[torch.Tensor]:
        self.began.set()
        assert self.gate.acquire(timeout=30)
        return super().encode(pixels)


def test_a_late_answer_serves_the_picture_s_next_request_and_leaves_no_pixels() -> None:
    bell = threading.Event()
    stream, picture = EncoderStream("thread", TowerSource(partial(SlowTower), 1), 1, bell.set), Square("again", 40)

    def until(kind: type) -> None:
        while not any(isinstance(item, kind) for item in stream.poll()):
            assert bell.wait(30)
            bell.clear()

    try:
        stream.submit(picture)
        until(Decoded)
        assert SlowTower.began.wait(30)
        stream.cancel(picture.key)  # its encode is under way all the same
        stream.prepare(picture)
        until(Decoded)
        SlowTower.gate.release()
        until(Encoded)
        assert stream._shelf.kept_bytes == 0 and not stream._shelf.pictures
    finally:
        SlowTower.gate.release(5)
        stream.close()


class StuckTower(MeanTower):
    """Hangs on pixel 99."""

    def encode(self, pixels: list[Any]) -> list[torch.Tensor]:
        if pixels[0][0, 0, 0] == 99:
            time.sleep(600)
        return super().encode(pixels)


def test_a_process_that_hangs_is_ended_and_the_next_image_gets_another() -> None:
    bench = Bench.__new__(Bench)
    bench.bell, bench.seen = threading.Event(), []
    bench.stream = EncoderStream("process", TowerSource(partial(StuckTower), 1, patience_s=3.0), 1, bench.bell.set)
    try:
        bench.stream.worker.wait_ready()
        bench.stream.submit(Square("good", 40))
        bench.stream.submit(Square("stuck", 99))
        found = bench.until("good", "stuck")
        assert isinstance(found["good"], Encoded)
        assert isinstance(found["stuck"], Lost) and isinstance(found["stuck"].error, EncodeFailed)
        bench.stream.submit(Square("next", 50))
        assert isinstance(bench.until("next")["next"], Encoded)
        assert not bench.stream.is_hung
    finally:
        bench.stream.close()


def test_a_stopped_process_never_makes_the_caller_wait() -> None:
    """The line fills up behind a process that does not read; sending goes on all the same, and so does closing."""
    bench = Bench("process")
    try:
        bench.stream.worker.wait_ready()
        os.kill(bench.stream.worker.pid, signal.SIGSTOP)
        large = Square("large", 10, rows=400_000)  # 6 MB of pixels, more than a pipe takes
        bench.stream.submit(large)
        bench.until("large", kind=Decoded)
        for i in range(3):
            bench.stream.submit(Square(f"more {i}", 20))
        assert bench.stream.worker.silent_since_s is not None
    finally:
        bench.stream.close()
