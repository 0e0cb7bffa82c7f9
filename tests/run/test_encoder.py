"""The encoder stream in all three placements: order, exactly one answer, cancellation, failure, death, nothing left."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from foveate.core.errors import EncodeFailed, InvalidImage
from foveate.core.values import Frame
from foveate.run.encoder import Decoded, EncoderStream, reader
from foveate.run.encoder_worker import Encoded, Lost, TowerSource

PLACES = ["inline", "thread", "process"]


class MeanTower:
    """Stands in for a vision tower: `rows` copies of the mean pixel; pixel 13 breaks it, pixel 66 kills its process."""

    out_size = 4

    def encode(self, pixels: list[Any]) -> list[torch.Tensor]:
        for image in pixels:
            if image[0, 0, 0] == 13:
                raise RuntimeError("planted")
            if image[0, 0, 0] == 66:
                os.kill(os.getpid(), signal.SIGKILL)
        return [torch.full((image.shape[0], 4), float(image.mean())) for image in pixels]


@dataclass(frozen=True)
class Square:
    """A picture of one colour, `rows` high."""

    key: str
    value: int
    rows: int = 3
    grid: tuple[int, int] = (1, 1)
    broken: str = ""

    def pixels(self) -> Any:
        if self.broken == "invalid":
            raise InvalidImage("truncated")
        if self.broken == "surprise":
            raise KeyError("from some decoder")
        return np.full((self.rows, 5, 3), self.value, dtype=np.uint8)


class Bench:
    """A stream with a waiting poll."""

    def __init__(self, place: str) -> None:
        self.bell = threading.Event()
        self.stream = EncoderStream(place, TowerSource(partial(MeanTower), 1), 2, self.bell.set)
        self.seen: list[Decoded | Encoded | Lost] = []

    def until(self, *keys: str, kind: type | tuple[type, ...] = (Encoded, Lost)) -> dict[str, Any]:
        """Poll until each key has an answer of this kind."""
        while True:
            self.seen += self.stream.poll()
            found = {item.key: item for item in self.seen if isinstance(item, kind)}
            if set(keys) <= set(found):
                return found
            if not self.stream.inline_work:
                assert self.bell.wait(120), f"no answer for {set(keys) - set(found)}"
                self.bell.clear()


@pytest.fixture(params=PLACES)
def bench(request: pytest.FixtureRequest):
    before = {t.ident for t in threading.enumerate()}
    made = Bench(request.param)
    yield made
    made.stream.close()
    left = [t for t in threading.enumerate() if t.ident not in before and t.name.startswith("foveate")]
    assert not left, f"threads left: {left}"
    assert not [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())], "a process is left"


def test_rows_come_out_in_order_once_each(bench: Bench) -> None:
    pictures = [Square(f"k{i}", 10 * i + 20) for i in range(4)]
    for picture in pictures:
        bench.stream.prepare(picture)
    bench.until(*(p.key for p in pictures), kind=Decoded)
    for picture in reversed(pictures):
        bench.stream.submit(picture)
    found = bench.until(*(p.key for p in pictures))
    for picture in pictures:
        assert torch.equal(found[picture.key].rows, torch.full((3, 4), float(picture.value)))
    encoded = [item.key for item in bench.seen if isinstance(item, Encoded)]
    assert encoded == ["k3", "k2", "k1", "k0"]
    starts = [item.start_s for item in bench.seen if isinstance(item, Encoded)]
    assert starts == sorted(starts)


def test_a_failing_image_is_lost_alone(bench: Bench) -> None:
    for picture in (Square("good", 50), Square("bad", 13), Square("after", 60)):
        bench.stream.submit(picture)
    found = bench.until("good", "bad", "after")
    assert isinstance(found["bad"], Lost) and isinstance(found["bad"].error, EncodeFailed)
    assert isinstance(found["good"], Encoded) and isinstance(found["after"], Encoded)


@pytest.mark.parametrize("broken", ["invalid", "surprise"])
def test_a_picture_that_does_not_decode_is_the_clients_fault(bench: Bench, broken: str) -> None:
    bench.stream.submit(Square("first", 30, broken=broken))
    bench.stream.submit(Square("second", 40))
    found = bench.until("first", "second")
    assert isinstance(found["first"], Lost) and isinstance(found["first"].error, InvalidImage)
    assert "KeyError" not in str(found["first"].error)
    assert isinstance(found["second"], Encoded)


def test_the_count_of_rows_is_checked(bench: Bench) -> None:
    @dataclass(frozen=True)
    class Liar(Square):
        def pixels(self) -> Any:
            return np.full((self.rows + 1, 5, 3), self.value, dtype=np.uint8)

    bench.stream.submit(Liar("liar", 30))
    assert isinstance(bench.until("liar")["liar"], Lost)


def test_cancelled_keys_are_not_answered_and_can_come_back(bench: Bench) -> None:
    bench.stream.submit(Square("stays", 30))
    bench.stream.submit(Square("goes", 40))
    bench.stream.cancel("goes")
    bench.stream.cancel("never heard of")
    bench.stream.submit(Square("last", 50))
    bench.until("stays", "last")
    assert not [item for item in bench.seen if item.key == "goes" and not isinstance(item, Decoded)]
    bench.stream.submit(Square("goes", 40))
    assert isinstance(bench.until("goes")["goes"], Encoded)


def test_an_answer_that_waits_to_be_told_is_dropped_with_its_key(bench: Bench) -> None:
    bench.stream.submit(Square("goes", 40))
    while not any(isinstance(item, Encoded) for item in bench.stream._shelf.out):
        bench.stream.worker.advance()
        time.sleep(0.001)
    bench.stream.cancel("goes")
    bench.stream.submit(Square("last", 50))
    bench.until("last")
    assert not [item for item in bench.seen if item.key == "goes" and not isinstance(item, Decoded)]


def test_close_with_work_outstanding(bench: Bench) -> None:
    for i in range(12):
        bench.stream.submit(Square(f"k{i}", 10 + i))
    bench.stream.close()


def test_the_death_of_the_process_costs_its_images_only() -> None:
    bench = Bench("process")
    try:
        bench.stream.submit(Square("killer", 66))
        found = bench.until("killer")
        assert isinstance(found["killer"], Lost) and isinstance(found["killer"].error, EncodeFailed)
        bench.stream.submit(Square("next", 70))
        assert isinstance(bench.until("next")["next"], Encoded)
    finally:
        bench.stream.close()


class NoTower:
    def __init__(self) -> None:
        raise EncodeFailed("no such weights")


def test_a_tower_that_cannot_load_says_so() -> None:
    stream = EncoderStream("process", TowerSource(partial(NoTower), 1), 1, lambda: None)
    with pytest.raises(EncodeFailed, match="no such weights"):
        stream.worker.wait_ready()  # type: ignore[attr-defined]
    stream.close()


def test_resizing_is_left_to_a_gpu_only() -> None:
    class Both(Square):
        def frame(self) -> Any:
            return Frame(self.pixels(), (6, 10))

    picture = Both("a", 7)
    assert isinstance(reader("cpu", "thread")(picture), np.ndarray)
    left = reader("cuda:1", "process")(picture)
    assert isinstance(left, Frame) and left.size == (6, 10) and left.nbytes == 3 * 5 * 3
    again = pickle.loads(pickle.dumps(left))
    assert again.size == left.size and np.array_equal(again.pixels, left.pixels), "it travels to another process"
