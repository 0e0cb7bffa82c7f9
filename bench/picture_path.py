"""From encoded pictures to frames a tower can take: 16 at once on the decoding pool, resized there or on a device.

Owns the measurement of the picture path alone, without engine and model: decode and resize on the cores (what a CPU
does), and decode on the cores with the resize left to the encoder's device (what a GPU does; on a CPU the same code
runs, only to compare bytes). Both in turn, in one run. Prints one JSON line.

    python bench/picture_path.py --workers 1,2,4,16 --device cuda:0
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from foveate.bench.charts import painter
from foveate.bench.record import record, summed
from foveate.core.config import PictureLimits
from foveate.core.values import ImageRules
from foveate.ops.frames import frames_on
from foveate.prompt.pixels import Picture, measure
from foveate.run.encoder import reader

RULES = ImageRules(16, 2, 65_536, 16_777_216, (0.5,) * 3, (0.5,) * 3)


def timed(work: Callable[[], Any], device: torch.device) -> float:
    began_s = time.monotonic()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic() - began_s


def through(pool: ThreadPoolExecutor, read: Callable[[Picture], Any], pictures: Sequence[Picture], device: Any) -> None:
    """Each picture goes to the device as soon as it is decoded, in order."""
    for decoded in pool.map(read, pictures):
        frames_on([decoded], device)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time decoding and resizing.")
    parser.add_argument("--pictures", default="charts")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device, (draw, _) = torch.device(options.device), painter(options.pictures)
    pictures = [measure(draw(seed), RULES, PictureLimits(), "bench") for seed in range(options.images)]
    ways: dict[str, Callable[[Picture], Any]] = {
        "on_cores": lambda picture: picture.pixels(),
        "decode_only": reader("cuda", "thread") if device.type == "cuda" else lambda picture: picture.frame().pixels,
    }
    out: dict[str, Any] = {"bench": "picture_path", "pictures": options.pictures, "images": options.images, "ms": {}}
    for workers in (int(word) for word in options.workers.split(",")):
        times: dict[str, list[float]] = {way: [] for way in ways}
        with ThreadPoolExecutor(workers) as pool:
            for number in range(options.repeats + 1):
                for way, read in ways.items():
                    took_s = timed(lambda read=read: through(pool, read, pictures, device), device)  # type: ignore[misc]
                    if number:
                        times[way].append(1e3 * took_s)
        out["ms"][workers] = {way: summed(taken) | {"least": round(min(taken), 2)} for way, taken in times.items()}
    names = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    print(json.dumps(out | {"record": record(names)}))


if __name__ == "__main__":
    main()
