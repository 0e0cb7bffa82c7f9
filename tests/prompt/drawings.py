"""Pictures made by the tests, and short ways to write, cut open and compare them."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from foveate.core.config import PictureLimits
from foveate.core.values import ImageRules
from foveate.prompt.pixels import measure

RULES = ImageRules(patch=16, merge=2, min_pixels=1024, max_pixels=65536, mean=(0.5,) * 3, std=(0.5,) * 3)
LIMITS = PictureLimits()
RANDOM = np.random.RandomState(0)
PHOTO = Image.fromarray(RANDOM.randint(0, 256, (64, 96, 3), np.uint8))  # exactly 2x3 blocks: no resize
RAMPS = np.meshgrid(np.linspace(0, 255, 96), np.linspace(0, 255, 64))
SMOOTH = Image.fromarray(np.stack([*RAMPS, np.full((64, 96), 40.0)], 2).astype(np.uint8))
FORMS = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]


def pixels(data: bytes, rules: ImageRules = RULES) -> np.ndarray:
    return measure(data, rules, LIMITS, "p").pixels()


def near(a: np.ndarray, b: np.ndarray | Image.Image, most: float) -> bool:
    return a.shape == np.asarray(b).shape and np.abs(a.astype(int) - np.asarray(b).astype(int)).mean() <= most


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_with_header(width: int, height: int, depth: int = 8, colour: int = 0, *more: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    rest = more or (png_chunk(b"IDAT", zlib.compress(b"")), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + b"".join(rest)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()
