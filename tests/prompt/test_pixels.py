"""Measuring, limits and keys of pictures, all from their headers."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import pickle
import struct
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidImage, TooLarge
from foveate.core.values import Frame, ImageRules
from foveate.ops.frames import frames_on
from foveate.prompt.formats import read_header
from foveate.prompt.pixels import check_total, image_grid, measure
from tests.prompt.drawings import (
    LIMITS,
    PHOTO,
    RANDOM,
    RULES,
    SMOOTH,
    encoded,
    pixels,
    png_chunk,
    png_with_header,
)

# --- the resize rule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rows"), [((224, 224), 64), ((640, 480), 300), ((1024, 768), 768), ((1920, 1080), 2040)]
)
def test_rows_of_known_sizes(size: tuple[int, int], rows: int) -> None:
    released = dataclasses.replace(RULES, min_pixels=65536, max_pixels=16777216)
    assert math.prod(image_grid(*size, released)) // 4 == rows


@given(st.integers(1, 6000), st.integers(1, 6000), st.sampled_from([(65536, 16777216), (1024, 65536), (3136, 100352)]))
def test_the_grid_stays_in_the_models_range(width: int, height: int, bounds: tuple[int, int]) -> None:
    rules = dataclasses.replace(RULES, min_pixels=bounds[0], max_pixels=bounds[1])
    down, across = image_grid(width, height, rules)
    assert down % 2 == across % 2 == 0 and min(down, across) > 0
    if max(width, height) <= 200 * min(width, height):
        assert bounds[0] <= down * across * 256
        assert down * across * 256 <= bounds[1] or min(down, across) == 2


def test_equals_the_reference_processor_byte_for_byte() -> None:
    from transformers import Qwen2VLImageProcessorPil

    sizes = [(70, 100), (37, 150), (64, 96), (16, 800), (48, 80), (5, 5), (300, 500), (900, 20), (33, 31)]
    for smallest, largest in ((1024, 65536), (65536, 16777216)):
        rules = dataclasses.replace(RULES, min_pixels=smallest, max_pixels=largest)
        bounds = {"shortest_edge": smallest, "longest_edge": largest}
        raw = Qwen2VLImageProcessorPil(patch_size=16, size=bounds, do_rescale=False, do_normalize=False)
        for height, width in sizes:
            image = Image.fromarray(RANDOM.randint(0, 256, (height, width, 3), np.uint8))
            picture = measure(encoded(image), rules, LIMITS, "p")
            want = raw(images=[image], return_tensors="np")
            assert [1, *picture.grid] == want["image_grid_thw"][0].tolist()
            assert np.array_equal(patches(picture.pixels()), want["pixel_values"])


def patches(values: np.ndarray) -> np.ndarray:
    """uint8 [height, width, 3] as the processor lays patches out: [patches, 3 * 2 * 16 * 16]."""
    down, across = values.shape[0] // 32, values.shape[1] // 32
    x = values.transpose(2, 0, 1).reshape(3, down, 2, 16, across, 2, 16).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.repeat(x[:, :, :, :, :, None], 2, axis=5).reshape(down * across * 4, -1)


@given(st.integers(1, 5000), st.integers(1, 5000))
@settings(max_examples=300, deadline=None)
def test_grids_of_the_reference_processor(height: int, width: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    if max(height, width) <= 200 * min(height, width):
        want = smart_resize(height, width, factor=32, min_pixels=1024, max_pixels=65536)
        assert image_grid(width, height, RULES) == (want[0] // 16, want[1] // 16)


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(27, 257), (1, 1), (500, 19), (2, 1), (1, 200)])
def test_B06_tiny_pictures_are_scaled_up(width: int, height: int) -> None:
    image = Image.new("RGB", (width, height), (200, 100, 50))
    picture = measure(encoded(image), RULES, LIMITS, "p")
    got = picture.pixels()
    assert got.shape == (picture.grid[0] * 16, picture.grid[1] * 16, 3) and picture.rows >= 1
    assert (got == (200, 100, 50)).all()


def test_B06_extreme_sides_are_refused_with_the_limit() -> None:
    with pytest.raises(InvalidImage, match="factor of 200 at most") as caught:
        measure(encoded(Image.new("L", (1, 500))), RULES, LIMITS, "messages.0")
    assert caught.value.param == "messages.0" and caught.value.code == "invalid_image"
    with pytest.raises(InvalidImage, match="at most 65,535 pixels"):
        measure(png_with_header(66000, 1000), RULES, LIMITS, "p")


@pytest.mark.parametrize(
    "data",
    [
        png_with_header(50000, 50000),
        png_with_header(13000, 13000),
        png_with_header(2**31 - 1, 2**31 - 1),
        b"GIF89a"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\0\0,\0\0\0\0"
        + struct.pack("<HH", 65535, 65535)
        + b"\0\2\0;",
        b"BM"
        + struct.pack("<IHHI", 0, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 9000, 9000, 1, 24, 0, 0, 0, 0, 0, 0),
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3e\0" * 2 + b"VP8 \0\0\0\0",
    ],
    ids=["png-50000", "png-13000", "png-2**31", "gif", "bmp", "webp"],
)
def test_B09_bombs_are_refused_from_the_header(data: bytes) -> None:
    tracemalloc.start()
    try:
        with warnings.catch_warnings(), pytest.raises(InvalidImage):
            warnings.simplefilter("error")
            measure(data, RULES, LIMITS, "p")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_B09_a_real_bomb_is_not_decoded() -> None:
    rows = zlib.compress(b"\0" * (12000 * 12001))
    data = png_with_header(12000, 12000, 8, 0, png_chunk(b"IDAT", rows), png_chunk(b"IEND", b""))
    assert len(data) < 150_000
    with pytest.raises(InvalidImage, match="12000x12000; at most 67,108,864 pixels"):
        measure(data, RULES, LIMITS, "p")


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_B09_compressed_texts_do_not_unfold(kind: bytes) -> None:
    bomb = zlib.compress(b"x" * (80 * 2**20))
    head = b"note\0\1\0\0\0" if kind == b"iTXt" else b"note\0\0"
    more = (png_chunk(kind, head + bomb), png_chunk(b"IDAT", zlib.compress(b"\0\0")), png_chunk(b"IEND", b""))
    data = png_with_header(1, 1, 8, 0, *more)
    tracemalloc.start()
    try:
        pixels(data)
    except InvalidImage:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * 2**20


def test_limits_are_those_given() -> None:
    data = encoded(PHOTO)
    for limits, reason in (
        (PictureLimits(image_pixels=64 * 96 - 1), "at most 6,143 pixels"),
        (PictureLimits(max_side=95), "at most 95 pixels"),
        (PictureLimits(aspect_ratio=1), "factor of 1 at most"),
    ):
        with pytest.raises(InvalidImage, match=reason):
            measure(data, RULES, limits, "p")
    with pytest.raises(TooLarge, match="bytes"):
        measure(data, RULES, PictureLimits(image_bytes=len(data) - 1), "p")
    assert measure(data, RULES, PictureLimits(image_bytes=len(data), image_pixels=64 * 96, max_side=96), "p").rows == 6


def test_totals_of_a_request() -> None:
    picture = measure(encoded(PHOTO), RULES, LIMITS, "p")
    exact = PictureLimits(total_bytes=3 * len(picture.data), total_pixels=3 * 64 * 96)
    check_total([picture] * 3, exact)
    with pytest.raises(InvalidImage, match=r"18,432 pixels together; at most 18,431"):
        check_total([picture] * 3, dataclasses.replace(exact, total_pixels=18431))
    with pytest.raises(TooLarge, match="per request"):
        check_total([picture] * 3, dataclasses.replace(exact, total_bytes=exact.total_bytes - 1))


# --- identity --------------------------------------------------------------------------------------------------------


def test_keys_follow_bytes_and_rules_alone() -> None:
    data = encoded(SMOOTH)
    one = measure(data, RULES, LIMITS, "messages.0")
    assert one.key == measure(data, RULES, PictureLimits(max_side=9999), "input.7").key
    assert len(one.key) == 64 and int(one.key, 16) >= 0
    others = [
        measure(encoded(SMOOTH.convert("P")), RULES, LIMITS, "p"),
        measure(encoded(SMOOTH.resize((64, 96))), RULES, LIMITS, "p"),
        measure(encoded(SMOOTH, compress_level=1), RULES, LIMITS, "p"),
        *(measure(data, dataclasses.replace(RULES, **change), LIMITS, "p") for change in (
            {"patch": 14}, {"merge": 1}, {"min_pixels": 2048}, {"max_pixels": 9999}, {"mean": (0.4,) * 3},
            {"std": (0.4,) * 3},
        )),
    ]  # fmt: skip
    assert len({one.key, *(other.key for other in others)}) == 1 + len(others)


def test_a_picture_crosses_processes_and_hides_its_bytes() -> None:
    picture = measure(encoded(SMOOTH), RULES, LIMITS, "p")
    again = pickle.loads(pickle.dumps(picture))
    assert again == picture and again.rows == picture.rows and np.array_equal(again.pixels(), picture.pixels())
    assert len(repr(picture)) < 500 and "data" not in repr(picture)
    with pytest.raises(dataclasses.FrozenInstanceError):
        picture.key = "other"  # type: ignore[misc]


def test_many_threads_and_not_one_warning() -> None:
    """A TIFF with broken tags makes Pillow warn while opening and while decoding."""
    data = bytearray(encoded(SMOOTH, "TIFF"))
    count_at = struct.unpack_from("<I", data, 4)[0]
    entries = struct.unpack_from("<H", data, count_at)[0]
    for n in range(entries):  # a tag whose data lies beyond the end
        at = count_at + 2 + 12 * n
        if struct.unpack_from("<H", data, at)[0] == 0x0129 or n == entries - 1:
            struct.pack_into("<HHII", data, at, struct.unpack_from("<H", data, at)[0], 2, 999_999, 0x7FFFFFF0)
    good = encoded(SMOOTH)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(_try, [bytes(data), good] * 40))
    assert not seen


def _try(data: bytes) -> None:
    with contextlib.suppress(InvalidImage):
        pixels(data)


def test_headers_alone_are_read() -> None:
    """A picture whose pixels are rubbish measures like any other, and fails when its pixels are wanted."""
    data = png_with_header(96, 64, 8, 2, png_chunk(b"IDAT", b"rubbish" * 9), png_chunk(b"IEND", b""))
    picture = measure(data, RULES, LIMITS, "p")
    assert read_header(data, "p").size == (96, 64) and picture.rows == 6
    with pytest.raises(InvalidImage):
        picture.pixels()


@pytest.mark.parametrize("size", [(850, 600), (640, 448), (900, 2500), (4000, 3000), (33, 700)])
def test_a_picture_whose_resizing_is_left_over_is_the_same_picture(size: tuple[int, int]) -> None:
    random = np.random.RandomState(size[0])
    drawn = Image.fromarray(random.randint(0, 256, (size[1] // 4 + 1, size[0] // 4 + 1, 3)).astype(np.uint8))
    out = io.BytesIO()
    drawn.resize(size, Image.Resampling.NEAREST).save(out, "PNG")
    rules = ImageRules(16, 2, 65_536, 1_048_576, (0.5,) * 3, (0.5,) * 3)
    picture = measure(out.getvalue(), rules, PictureLimits(), "p")
    got, want = picture.frame(), picture.pixels()
    assert isinstance(got, Frame) == (size not in ((900, 2500), (4000, 3000))), "much larger, or flattened"
    assert np.array_equal(frames_on([got], torch.device("cpu"))[0].numpy(), want)
