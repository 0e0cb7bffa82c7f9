"""Pictures for benchmarks: drawn fresh from a seed, so that no cache and no sharing can help.

Owns the kinds of pictures and their sizes. The drawings have the weight of real ones (text, lines, bars, speckles that
PNG cannot crush); what they say does not matter to a clock.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from PIL import Image, ImageDraw

from foveate.core.errors import ConfigError


def chart_png(seed: int, width: int = 640, height: int = 448) -> bytes:
    """A bar chart as PNG bytes; equal seeds give equal bytes, different seeds different pictures."""
    rng = random.Random(seed)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    count = rng.randint(4, 9)
    step = (width - 90) // count
    for line in range(6):
        draw.line(
            [50, 40 + line * (height - 100) // 6, width - 20, 40 + line * (height - 100) // 6], fill=(205, 205, 205)
        )
    for bar in range(count):
        left, tall = 60 + bar * step, rng.randint(20, height - 130)
        colour = tuple(rng.randrange(230) for _ in range(3))
        draw.rectangle([left, height - 60 - tall, left + step - 12, height - 60], fill=colour)
        draw.text((left, height - 50), f"B{bar} {rng.randrange(1000)}", fill="black")
        draw.text((left, height - 75 - tall), str(tall), fill="black")
    for _ in range(400):
        draw.point((rng.randrange(width), rng.randrange(height)), fill=tuple(rng.randrange(256) for _ in range(3)))
    draw.text((width // 3, 10), f"Readings of series {seed}", fill="black")
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def screenshot_png(seed: int, width: int = 1920, height: int = 1080) -> bytes:
    """A desktop with windows full of text as PNG bytes; equal seeds give equal bytes."""
    rng = random.Random(seed)
    image = Image.new("RGB", (width, height), tuple(rng.randrange(40, 120) for _ in range(3)))
    draw = ImageDraw.Draw(image)
    for number in range(rng.randint(3, 5)):
        left, top = rng.randrange(width // 2), rng.randrange(height // 2)
        right, bottom = left + width // 2 - 20, top + height // 2 - 20
        draw.rectangle([left, top, right, bottom], fill="white", outline="black")
        draw.rectangle([left, top, right, top + 24], fill=tuple(rng.randrange(90, 200) for _ in range(3)))
        draw.text((left + 8, top + 6), f"Window {number} of {seed}", fill="white")
        for line in range(top + 34, bottom - 14, 14):
            words = " ".join(str(rng.randrange(10**6)) for _ in range(rng.randint(4, max(5, width // 120))))
            draw.text((left + 8, line), words, fill="black")
    for _ in range(1500):
        draw.point((rng.randrange(width), rng.randrange(height)), fill=tuple(rng.randrange(256) for _ in range(3)))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


LEAST_SIDE = 192  # of a picture that has room for what is drawn
# What draws a kind, and the size that it has when nobody says.
KINDS: Mapping[str, tuple[Callable[[int, int, int], bytes], tuple[int, int]]] = MappingProxyType(
    {"charts": (chart_png, (850, 600)), "screenshots": (screenshot_png, (1920, 1080))}
)


def painter(kind: str, size: str = "") -> tuple[Callable[[int], bytes], tuple[int, int]]:
    """What draws pictures of a kind from seeds, and their (width, height); `size` in words, WIDTHxHEIGHT.

    Raises ConfigError for another kind and for what is no size.
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown pictures: {kind} ({' or '.join(KINDS)})")
    draw, sides = KINDS[kind]
    if size:
        words = size.split("x")
        if len(words) != 2 or not all(word.isdigit() and int(word) >= LEAST_SIDE for word in words):
            raise ConfigError(f"{size} is no size: WIDTHxHEIGHT, {LEAST_SIDE} pixels or more each")
        sides = int(words[0]), int(words[1])
    return (lambda seed: draw(seed, *sides)), sides


def data_url(png: bytes) -> str:
    """PNG bytes as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
