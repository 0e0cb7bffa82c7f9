"""The resize on a device is Pillow's, byte for byte."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from foveate.core.values import Frame
from foveate.ops.frames import frames_on, resize

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise and hard edges: both ends of the range, so that overshoots are cut."""
    random = np.random.RandomState(seed)
    pixels = random.randint(0, 256, (height, width, 3)).astype(np.uint8)
    pixels[: height // 2, : width // 2] = random.choice([0, 255], (height // 2, width // 2, 1))
    return pixels


def check(pixels: np.ndarray, size: tuple[int, int]) -> None:
    want = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC))
    got = resize(torch.from_numpy(pixels.copy()).to(DEVICE), size)
    assert got.dtype == torch.uint8 and np.array_equal(got.cpu().numpy(), want)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (600, 850, (608, 864)),
        (1080, 1920, (1088, 1920)),
        (448, 640, (448, 640)),
        (96, 64, (96, 32)),
        (1, 1, (32, 32)),
        (700, 900, (352, 256)),
    ],
)
def test_sizes_of_real_pictures(height: int, width: int, size: tuple[int, int]) -> None:
    check(picture(height, width), size)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 90), st.integers(1, 90), st.integers(0, 9))
def test_any_size_to_any_size(height: int, width: int, tall: int, wide: int, seed: int) -> None:
    if height - tall <= max(0, 2 * (width - wide)):  # else the order of the passes depends on Pillow's version
        check(picture(height, width, seed), (tall, wide))


def test_arrays_tensors_and_frames_arrive_alike() -> None:
    pixels = picture(40, 50)
    pixels.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kinds = [pixels, torch.from_numpy(pixels.copy()), Frame(pixels, (40, 50)), Frame(pixels, (64, 32))]
        got = frames_on(kinds, torch.device(DEVICE))
    assert all(np.array_equal(one.cpu().numpy(), pixels) for one in got[:3])
    assert got[3].shape == (64, 32, 3) and all(one.device.type == DEVICE for one in got)
