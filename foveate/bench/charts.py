"""Pictures for benchmarks: drawn fresh from a seed, so that no cache and no sharing can help.

Owns nothing else. The drawings have the weight of a real chart (text, lines, bars, speckles that PNG cannot crush);
what they say does not matter to a clock.
"""

from __future__ import annotations

import base64
import io
import random

from PIL import Image, ImageDraw


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


def data_url(png: bytes) -> str:
    """PNG bytes as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
