"""The encoder stream with DeepSeek's own tower: whole blocks from every placement, failures alone, nothing left."""

from __future__ import annotations

import io
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from foveate.core.config import PictureLimits
from foveate.core.errors import EncodeFailed, InvalidImage
from foveate.core.images import BlockRules
from foveate.core.values import MAX_IMAGES
from foveate.models.interface import VisionTower
from foveate.models.registry import describe, load_vision
from foveate.prompt.pixels import Picture, measure
from foveate.run.encoder import Decoded, EncoderStream
from foveate.run.encoder_worker import Encoded, Lost, TowerSource
from tests.support.harness import tiny

FOLDER = tiny("v4_vision")[2]


class Picky:
    """The tower, but a picture in which nothing is brighter than the grey around it breaks it."""

    def __init__(self, folder: Path) -> None:
        self._tower = load_vision(folder, "cpu", torch.float32)
        self.out_size = self._tower.out_size

    def encode(self, pixels: list[Any]) -> list[torch.Tensor]:
        if any(image.max() <= 127 for image in pixels):
            raise RuntimeError("planted")
        return self._tower.encode(pixels)


def load() -> VisionTower:
    return Picky(FOLDER)


def picture(seed: int, width: int = 60, height: int = 44, black: bool = False, cut: int = 0) -> Picture:
    rules = describe(FOLDER).image_rules
    assert isinstance(rules, BlockRules)
    values = np.zeros((height, width, 3), np.uint8)
    if not black:
        values = np.random.RandomState(seed).randint(1, 256, (height, width, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    return measure(out.getvalue()[: len(out.getvalue()) - cut], rules, PictureLimits(), f"images[{seed}]")


class Bench:
    """A stream with a waiting poll."""

    def __init__(self, place: str) -> None:
        self.bell = threading.Event()
        self.stream = EncoderStream(place, TowerSource(partial(load), 1), 2, self.bell.set)
        self.seen: list[Decoded | Encoded | Lost] = []

    def until(self, pictures: list[Picture]) -> dict[str, Encoded | Lost]:
        """Poll until each picture has its answer."""
        while True:
            self.seen += self.stream.poll()
            found = {item.key: item for item in self.seen if isinstance(item, (Encoded, Lost))}
            if {one.key for one in pictures} <= set(found):
                return found
            if not self.stream.inline_work:
                assert self.bell.wait(60), "no answer"
                self.bell.clear()


@pytest.fixture(params=["inline", "thread", "process"])
def bench(request: pytest.FixtureRequest):
    before = {t.ident for t in threading.enumerate()}
    made = Bench(request.param)
    yield made
    made.stream.close()
    left = [t for t in threading.enumerate() if t.ident not in before and t.name.startswith("foveate")]
    assert not left, f"threads left: {left}"
    assert not [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())], "a process is left"


def test_sixteen_images_come_out_as_whole_blocks_in_order(bench: Bench) -> None:
    pictures = [picture(i, 30 + 7 * i, 44 + i % 3) for i in range(MAX_IMAGES)]
    for one in pictures:
        bench.stream.submit(one)
    found, tower = bench.until(pictures), load_vision(FOLDER, "cpu", torch.float32)
    for one in pictures:
        answer = found[one.key]
        assert isinstance(answer, Encoded) and len(answer.rows) == one.rows
        assert (answer.rows - tower.encode([one.pixels()])[0]).abs().max() < 1e-5
    assert [item.key for item in bench.seen if isinstance(item, Encoded)] == [one.key for one in pictures]


def test_what_fails_fails_alone(bench: Bench) -> None:
    good, bad, cut, after = picture(1), picture(2, black=True), picture(3, cut=300), picture(4)
    for one in (good, bad, cut, after):
        bench.stream.submit(one)
    found = bench.until([good, bad, cut, after])
    assert isinstance(found[good.key], Encoded) and isinstance(found[after.key], Encoded)
    broken, truncated = found[bad.key], found[cut.key]
    assert isinstance(broken, Lost) and isinstance(broken.error, EncodeFailed)
    assert isinstance(truncated, Lost) and isinstance(truncated.error, InvalidImage)
    assert truncated.error.param == "images[3]"


def test_a_cancelled_picture_is_not_answered_and_can_come_back(bench: Bench) -> None:
    stays, goes = picture(5), picture(6)
    bench.stream.submit(stays)
    bench.stream.submit(goes)
    bench.stream.cancel(goes.key)
    bench.until([stays])
    assert not [item for item in bench.seen if item.key == goes.key and isinstance(item, (Encoded, Lost))]
    bench.stream.submit(goes)
    assert isinstance(bench.until([goes])[goes.key], Encoded)


def test_closing_with_work_outstanding_leaves_nothing(bench: Bench) -> None:
    for seed in range(12):
        bench.stream.submit(picture(20 + seed))
    bench.stream.close()
