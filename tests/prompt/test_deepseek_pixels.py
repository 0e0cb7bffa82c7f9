"""Sizes, pixels, limits and keys of pictures under DeepSeek's rule."""

from __future__ import annotations

import dataclasses
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidImage, TooLarge
from foveate.core.images import BlockRules, block_len, cells_of
from foveate.prompt.pixels import check_total, image_grid, measure
from tests.prompt.drawings import LIMITS, RANDOM, RULES, SMOOTH, encoded, png_with_header
from tests.support import v4_blocks

RELEASED = BlockRules(14, 3, 147456, 384, 8)
TINY = BlockRules(14, 3, 1764, 48, 8)
# (width, height): (resized height, resized width, cell rows, cell columns, tokens), from the description's table
KNOWN = {
    (224, 224): (392, 392, 10, 10, 114),
    (384, 384): (392, 392, 10, 10, 114),
    (640, 480): (490, 644, 12, 16, 206),
    (800, 600): (602, 812, 15, 20, 338),
    (1024, 768): (658, 882, 16, 21, 354),
    (1920, 1080): (588, 1036, 14, 25, 366),
    (1080, 1920): (1008, 560, 24, 14, 362),
    (4096, 4096): (756, 756, 18, 18, 346),
    (3000, 300): (252, 2016, 6, 48, 298),
    (300, 3000): (2100, 210, 50, 5, 302),
    (100, 1000): (1218, 126, 29, 3, 122),
}


def sizes(rules: BlockRules) -> v4_blocks.Sizes:
    return v4_blocks.Sizes(rules.patch, rules.cell, rules.min_pixels, rules.max_tokens, rules.max_ratio)


@pytest.mark.parametrize("size", KNOWN)
def test_known_sizes(size: tuple[int, int]) -> None:
    grid = image_grid(*size, RELEASED)
    cells = cells_of(grid, 3)
    assert (grid[0] * 14, grid[1] * 14, *cells, block_len(cells)) == KNOWN[size]


@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([RELEASED, TINY, BlockRules(16, 2, 4096, 24, 4)]))
@settings(max_examples=500, deadline=None)
def test_sizes_are_those_of_the_description(width: int, height: int, rules: BlockRules) -> None:
    grid = image_grid(width, height, rules)
    assert (grid[0] * rules.patch, grid[1] * rules.patch) == v4_blocks.resized(width, height, sizes(rules))
    assert min(grid) > 0 and block_len(cells_of(grid, rules.cell)) <= rules.max_tokens - 3


def test_the_smallest_budget_still_holds_every_picture() -> None:
    for most in range(9, 40):
        rules = BlockRules(14, 3, 1764, most, 8)
        for size in ((1, 200), (200, 1), (1, 1), (4000, 4000), (40, 8000), (8000, 40), (300, 41)):
            assert block_len(cells_of(image_grid(*size, rules), 3)) <= most - 3


def fitted(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """The picture in its own shape as large as `size` allows, in the middle of grey, by resize and paste only."""
    width, height = size
    if image.width * height > image.height * width:
        inner = (width, round(image.height / image.width * width))
    else:
        inner = (round(image.width / image.height * height), height)
    canvas = np.full((height, width, 3), 127, np.uint8)
    left, top = round((width - inner[0]) * 0.5), round((height - inner[1]) * 0.5)
    canvas[top : top + inner[1], left : left + inner[0]] = np.array(image.resize(inner, Image.Resampling.BICUBIC))
    return canvas


@pytest.mark.parametrize("rules", [RELEASED, TINY])
def test_pixels_are_pillows_byte_for_byte(rules: BlockRules) -> None:
    rng = random.Random(3)
    shapes = [
        (70, 100),
        (37, 150),
        (64, 96),
        (16, 110),
        (480, 640),
        (5, 5),
        (300, 500),
        (900, 120),
        (42, 42),
        (14, 112),
    ]
    shapes += [(rng.randint(20, 400), rng.randint(20, 400)) for _ in range(12)]
    for height, width in shapes:
        image = Image.fromarray(RANDOM.randint(0, 256, (height, width, 3), np.uint8))
        picture = measure(encoded(image), rules, LIMITS, "p")
        size = (picture.grid[1] * 14, picture.grid[0] * 14)
        got = picture.pixels()
        assert got.dtype == np.uint8 and got.shape == (size[1], size[0], 3)
        stretched = width >= 8 * height
        want = np.array(image.resize(size, Image.Resampling.BICUBIC)) if stretched else fitted(image, size)
        assert np.array_equal(got, want), (height, width)


def test_a_very_wide_picture_is_stretched_and_any_other_kept_in_shape() -> None:
    white = Image.new("RGB", (800, 100), (255, 255, 255))
    assert (measure(encoded(white), RELEASED, LIMITS, "p").pixels() == 255).all(), "eight times as wide: no grey"
    tall = measure(encoded(white.resize((95, 800))), RELEASED, LIMITS, "p").pixels()
    assert (tall == 127).any() and (tall == 255).any()


def test_rows_are_the_whole_block() -> None:
    picture = measure(encoded(SMOOTH), RELEASED, LIMITS, "p")
    assert picture.rows == v4_blocks.token_count(*v4_blocks.cells(picture.grid[0] * 14, picture.grid[1] * 14))


def test_limits_hold_as_for_any_family() -> None:
    with pytest.raises(InvalidImage, match="factor of 200 at most") as caught:
        measure(encoded(Image.new("L", (1, 500))), RELEASED, LIMITS, "messages.0")
    assert caught.value.param == "messages.0"
    with pytest.raises(InvalidImage, match="at most 65,535 pixels"):
        measure(png_with_header(66000, 1000), RELEASED, LIMITS, "p")
    with pytest.raises(InvalidImage, match="pixels are allowed"):
        measure(png_with_header(13000, 13000), RELEASED, LIMITS, "p")
    data = encoded(SMOOTH)
    with pytest.raises(TooLarge):
        measure(data, RELEASED, PictureLimits(image_bytes=len(data) - 1), "p")
    picture = measure(data, RELEASED, LIMITS, "p")
    with pytest.raises(InvalidImage, match="together"):
        check_total([picture] * 3, PictureLimits(total_pixels=3 * 64 * 96 - 1))


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 200), (200, 1), (27, 257)])
def test_tiny_and_thin_pictures_are_taken(size: tuple[int, int]) -> None:
    picture = measure(encoded(Image.new("RGB", size, (200, 100, 50))), RELEASED, LIMITS, "p")
    got = picture.pixels()
    assert got.shape == (picture.grid[0] * 14, picture.grid[1] * 14, 3)
    assert {tuple(colour) for colour in got.reshape(-1, 3)} <= {(200, 100, 50), (127, 127, 127)}
    assert (got == (200, 100, 50)).all(-1).any()


def test_keys_follow_bytes_and_rules_alone() -> None:
    data = encoded(SMOOTH)
    one = measure(data, RELEASED, LIMITS, "messages.0")
    assert one.key == measure(data, RELEASED, PictureLimits(max_side=9999), "input.7").key
    changes = ({"patch": 16}, {"cell": 2}, {"min_pixels": 2048}, {"max_tokens": 99}, {"max_ratio": 4})
    others = [measure(data, dataclasses.replace(RELEASED, **change), LIMITS, "p") for change in changes]
    others += [measure(data, RULES, LIMITS, "p"), measure(encoded(SMOOTH, compress_level=1), RELEASED, LIMITS, "p")]
    assert len({one.key, *(other.key for other in others)}) == 1 + len(others)


def test_a_picture_crosses_processes() -> None:
    picture = measure(encoded(SMOOTH), RELEASED, LIMITS, "p")
    again = pickle.loads(pickle.dumps(picture))
    assert again == picture and again.rows == picture.rows and np.array_equal(again.pixels(), picture.pixels())
