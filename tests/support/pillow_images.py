"""Pillow's own test images as hostile input: read from its source package, never copied into the project.

The package is looked for as `.venv/pillow-images/pillow-VERSION.tar.gz`, VERSION being the installed one, where
`tools/pillow_images.py` puts it. Run as a program it decodes every file in this process and prints one JSON object:
what was read, what was refused, what went wrong, and what it took.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import tarfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image, ImageOps

from foveate.core.config import PictureLimits
from foveate.core.errors import InvalidImage
from foveate.core.values import ImageRules
from foveate.prompt.pixels import Picture, measure

SOURCE = Path(__file__).resolve().parents[2] / ".venv" / "pillow-images" / f"pillow-{PIL.__version__}.tar.gz"
RULES = ImageRules(patch=16, merge=2, min_pixels=1024, max_pixels=65536, mean=(0.5,) * 3, std=(0.5,) * 3)


def pictures(source: Path = SOURCE) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every file among the test images."""
    with tarfile.open(source) as package:
        for member in package:
            _, found, name = member.name.partition("/Tests/images/")
            if found and member.isfile() and (file := package.extractfile(member)):
                yield name, file.read()


def reference(data: bytes, picture: Picture) -> np.ndarray | None:
    """The same picture the long way round, or None where Pillow has no 8-bit reading of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I") or turned.mode == "F":
        return None
    flat = Image.new("RGBA", turned.size, "white")
    flat.alpha_composite(turned.convert("RGBA"))
    down, across = picture.grid
    return np.asarray(flat.convert("RGB").resize((across * 16, down * 16), Image.Resampling.BICUBIC))


def decode_all(source: Path) -> dict[str, Any]:
    """Outcome of every file. `peak_mib` is growth of the whole process; seconds are of this process's CPU."""
    out: dict[str, Any] = {"read": 0, "refused": {}, "wrong": {}, "differs": {}, "slowest_s": 0.0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, data in pictures(source):
        start = time.process_time()
        try:
            picture = measure(data, RULES, PictureLimits(), name)
            values = picture.pixels()
        except InvalidImage as refusal:
            out["refused"][name] = refusal.message
        except BaseException as fault:
            out["wrong"][name] = f"{type(fault).__name__}: {fault}"
        else:
            out["read"] += 1
            want = reference(data, picture)
            if want is not None and (want.shape != values.shape or np.abs(want.astype(int) - values).max() > 2):
                out["differs"][name] = str(picture)
        out["slowest_s"] = max(out["slowest_s"], time.process_time() - start)
    out["peak_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return out


if __name__ == "__main__":
    warnings.simplefilter("error")
    print(json.dumps(decode_all(Path(sys.argv[1]))))
