"""How long weights take to load, one source tree beside another, each time in a fresh process.

Owns a synthetic checkpoint of real dimensions (written once, of random numbers) and the measurement: trees take turns,
so that a drifting machine drifts for all. The page cache is warm after the first round, which is not counted: what is
measured is the way from the file system to fused weights, not a disk. Prints one JSON line.

    python bench/load_time.py /tmp/qwen3_5-0.8b --tree . --tree /tmp/before --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from make_dims import write

LOAD = """
import sys, time, torch
torch.set_num_threads({threads})
from foveate.models.registry import load_text, load_vision
began_s = time.monotonic()
load_vision({folder!r}, {device!r}, torch.{dtype})
load_text({folder!r}, {device!r}, torch.{dtype})
if {device!r} != "cpu":
    torch.cuda.synchronize()
print(time.monotonic() - began_s)
"""


def make(folder: Path, size: str) -> None:
    """A checkpoint of a size in bfloat16 in shards of about a gigabyte."""
    from safetensors.torch import save_file

    from foveate.models.files import read_json
    from foveate.models.qwen3_5_config import text_config, vision_config
    from foveate.models.qwen3_5_vision import vision_shapes
    from foveate.models.qwen3_5_weights import text_shapes

    write(folder, size)
    config = read_json(folder / "config.json")
    shapes = text_shapes(text_config(config), fused=False) | vision_shapes(vision_config(config))
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, shape in shapes.items():
        if sum(tensor.nbytes for tensor in shards[-1].values()) > 2**30:
            shards.append({})
        shards[-1][name] = torch.rand(shape, dtype=torch.bfloat16) - 0.5
    where = {}
    for number, shard in enumerate(shards):
        save_file(shard, folder / f"model-{number}.safetensors")
        where |= dict.fromkeys(shard, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def seconds(tree: Path, options: argparse.Namespace) -> float:
    """One load in a fresh process of this source tree."""
    code = LOAD.format(threads=options.threads, folder=str(options.folder), device=options.device, dtype=options.dtype)
    surroundings = os.environ | {"PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=surroundings, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the loading of weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default="0.8b")
    parser.add_argument("--tree", type=Path, action="append", required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    if not (options.folder / "model.safetensors.index.json").exists():
        make(options.folder, options.size)
    times: dict[str, list[float]] = {str(tree): [] for tree in options.tree}
    for number in range(options.repeats + 1):
        for tree in options.tree:
            took_s = seconds(tree, options)
            if number:
                times[str(tree)].append(took_s)
            print(f"{time.strftime('%T')} {tree}: {took_s:.2f} s", file=sys.stderr)
    size = sum(file.stat().st_size for file in options.folder.glob("*.safetensors"))
    found = {
        tree: {"median_s": round(statistics.median(taken), 3), "least_s": round(min(taken), 3)}
        for tree, taken in times.items()
    }
    print(json.dumps({"gigabytes": round(size / 1e9, 3), "dtype": options.dtype, "threads": options.threads} | found))


if __name__ == "__main__":
    main()
