"""Compiles every launch of the Triton kernels for a Hopper GPU (sm_90) where there is no GPU, at real models' sizes.

Owns a stand-in for Triton's driver, through which the kernels' own wrapper functions run as they do on a GPU up to the
launch itself, and a table of named launches: each kernel, at the sizes where it is largest. Tensors have shapes and no
memory. Promises, for each launch, what it compiled to and whether that fits the device: shared memory of a program and
the three sides of a grid. Says nothing about results.

`python -m tests.support.hopper [name ...]` prints a line of JSON for each launch, and fails if any does not fit. It
needs a process of its own: the stand-in takes the place of the driver, and kernels must not be interpreted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foveate.ops.lanes import DeltaSizes, DeltaWeights, HeadSizes, Lanes, Norm, Runs

SHARED_LIMIT = 232_448  # bytes a program may have
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
HEAD_DIM, DELTA_KEY_HEADS, DELTA_DIM, TURNED = 256, 16, 128, 32
VOCAB, PAGE_LEN, PAGES_OF_ONE = 248_320, 32, 8192
MANY = 70_000  # tokens of a long step: more than the second and third side of a grid hold
HALF, FULL = torch.bfloat16, torch.float32


@dataclass
class Kernel:
    """One kernel of a launch, as `module.name`; shared: bytes.

    Registers of a thread, and bytes of its stack (what was spilled is there), are None where no tool tells them.
    """

    name: str
    shared: int
    grid: tuple[int, int, int]
    registers: int | None
    stack: int | None


@dataclass
class Report:
    """What became of a launch. error: why it did not compile; misfits: what is beyond the device's limits."""

    name: str
    kernels: list[Kernel] = field(default_factory=list)
    error: str | None = None
    misfits: list[str] = field(default_factory=list)


def missing() -> str | None:
    """What stands in the way of compiling, None if nothing; found out without importing Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return "Triton is not installed"
    own = Path(spec.origin).parent / "backends/nvidia/bin/ptxas"
    return None if own.exists() or os.environ.get("TRITON_PTXAS_PATH") else "Triton has no ptxas here"


class Binaries:
    """Takes a compiled kernel as a driver would, and hands out what it needs instead of a handle."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """No limit of shared memory: a launch goes on, so that all its kernels are reported."""
        return {"max_shared_mem": 2**31, "multiprocessor_count": 132}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """(module, function, registers, spilled, most threads); the function is (registers, bytes of stack)."""
        return None, _usage(binary), 0, 0, 1024


def _usage(binary: bytes) -> tuple[int | None, int | None]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        shown = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    return (int(found[1]), int(found[2])) if found else (None, None)


class Driver:
    """A Hopper GPU as far as compiling goes: what is launched is written down in `launched`."""

    def __init__(self) -> None:
        self.utils = Binaries()
        self.launched: list[Kernel] = []

    def get_current_target(self) -> Any:
        """What is compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """Of one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Of one."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors without memory are."""
        return torch.device("meta")

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        """What Triton calls with a grid, a stream, the function of `load_binary` and the kernel's arguments."""

        name = f"{source.fn.__module__.rpartition('.')[2]}.{metadata.name}"

        def launch(x: int, y: int, z: int, stream: int, usage: tuple[int | None, int | None], *_: Any) -> None:
            self.launched.append(Kernel(name, metadata.shared, (x, y, z), *usage))

        return launch


def misfits(kernels: list[Kernel]) -> list[str]:
    """Everything about these that the device refuses, in words."""
    found = [f"{k.name}: {k.shared} bytes of shared memory" for k in kernels if k.shared > SHARED_LIMIT]
    return found + [
        f"{k.name}: a grid of {k.grid}"
        for k in kernels
        if any(side > limit for side, limit in zip(k.grid, GRID_LIMITS, strict=True))
    ]


def compiled(name: str) -> Report:
    """Run one launch of the table against a fresh stand-in."""
    from triton.runtime import driver

    stand_in = Driver()
    driver.set_active(stand_in)
    error = None
    try:
        LAUNCHES[name]()
    except Exception as fault:  # whatever the compiler throws is this launch's result
        error = f"{type(fault).__name__}: {str(fault)[-2000:]}"  # compilers say the reason last
    return Report(name, stand_in.launched, error, misfits(stand_in.launched))


def bare(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """A tensor with a shape and no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def small(*shape: int) -> Tensor:
    """Lengths and numbers of things."""
    return bare(*shape, dtype=torch.int32)


def lanes(count: int, width: int) -> Lanes:
    """Lanes of the longest context; wider ones are drafts, whose states a commit writes."""
    pages, tokens = small(count, PAGES_OF_ONE), small(count * width)
    return Lanes(small(count + 1), small(count), pages, small(count), tokens, width, PAGE_LEN, settle=width == 1)


def runs(tokens: int) -> Runs:
    """Two runs of many tokens."""
    blocks, chunks = small(tokens // 128 + 2, 2), small(tokens // 64 + 2, 2)
    return Runs(lanes(2, tokens // 2), blocks, chunks, small(3))


def paged(kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of one sequence of the longest context."""
    keys, values = (bare(PAGES_OF_ONE, PAGE_LEN, kv_heads, HEAD_DIM, dtype=dtype) for _ in "kv")
    return keys, values


def attend_few(heads: int, kv_heads: int, width: int, dtype: torch.dtype, count: int = 2) -> None:
    """Lanes' queries over their pages."""
    from foveate.ops import triton_attention

    at, tokens = lanes(count, width), count * width
    gate = bare(tokens, (2 * heads + 2 * kv_heads) * HEAD_DIM, dtype=dtype)[:, -heads * HEAD_DIM :]
    query, out = bare(tokens, heads, HEAD_DIM, dtype=dtype), bare(tokens, heads * HEAD_DIM, dtype=dtype)
    triton_attention.attend(query, gate, paged(kv_heads, dtype), at, out)


def attend_many(heads: int, kv_heads: int, dtype: torch.dtype) -> None:
    """Runs' queries over their pages."""
    from foveate.ops import triton_attention

    gate = bare(MANY, (2 * heads + 2 * kv_heads) * HEAD_DIM, dtype=dtype)[:, -heads * HEAD_DIM :]
    query, out = bare(MANY, heads, HEAD_DIM, dtype=dtype), bare(MANY, heads * HEAD_DIM, dtype=dtype)
    triton_attention.attend_runs(query, gate, paged(kv_heads, dtype), runs(MANY), out)


def place(heads: int, kv_heads: int, tokens: int, dtype: torch.dtype) -> None:
    """Norm, rope and the write to pages."""
    from foveate.ops import triton_rows

    mixed = bare(tokens, (2 * heads + 2 * kv_heads) * HEAD_DIM, dtype=dtype)
    scale, rope = bare(heads + kv_heads, HEAD_DIM, dtype=FULL), (bare(tokens, 1, TURNED, dtype=FULL),) * 2
    sizes, at = HeadSizes(heads, kv_heads, HEAD_DIM, 1e-6), lanes(1, tokens)
    triton_rows.place(mixed, scale, rope, paged(kv_heads, dtype), at, sizes)


def delta_layer(value_heads: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, DeltaWeights, Tensor]:
    """A projection, its convolved columns, weights and states of a DeltaNet layer."""
    sizes = DeltaSizes(DELTA_KEY_HEADS, DELTA_DIM, value_heads, DELTA_DIM, 1e-6)
    rate, bias, norm = (bare(n, dtype=FULL) for n in (value_heads, value_heads, DELTA_DIM))
    weights = DeltaWeights(bare(4, sizes.channels, dtype=dtype), rate, bias, norm, sizes)
    mixed = bare(tokens, sizes.channels + value_heads * (DELTA_DIM + 2), dtype=dtype)
    state = bare(64, value_heads, DELTA_DIM, DELTA_DIM, dtype=FULL)
    return mixed, bare(tokens, sizes.channels, dtype=dtype), weights, state


def delta_few(value_heads: int, width: int, dtype: torch.dtype) -> None:
    """Convolution and delta rule of lanes; of drafts, their commit too."""
    from foveate.ops import triton_delta

    at, kept = lanes(8, width), small(8)
    mixed, convolved, weights, state = delta_layer(value_heads, 8 * width, dtype)
    channels = weights.sizes.channels
    rows, carried = mixed[:, :channels], bare(64, 3, channels, dtype=dtype)
    triton_delta.convolve(rows, weights.conv, carried, at, convolved)
    triton_delta.delta(mixed, convolved, weights, state, at, bare(8 * width, value_heads * DELTA_DIM, dtype=dtype))
    if width > 1:
        triton_delta.keep_conv(rows, carried, at, kept)
        triton_delta.keep_delta(mixed, convolved, weights, state, at, kept)


def delta_many(value_heads: int, dtype: torch.dtype) -> None:
    """Convolution and delta rule of runs."""
    from foveate.ops import triton_chunks

    at, (mixed, convolved, weights, state) = runs(MANY), delta_layer(value_heads, MANY, dtype)
    channels = weights.sizes.channels
    triton_chunks.convolve_runs(mixed[:, :channels], weights.conv, bare(64, 3, channels, dtype=dtype), at, convolved)
    triton_chunks.delta_runs(mixed, convolved, weights, state, at, bare(MANY, value_heads * DELTA_DIM, dtype=dtype))


def rows_of(hidden: int, inner: int, dtype: torch.dtype) -> None:
    """RMS norm and SwiGLU product of many rows."""
    from foveate.ops import triton_rows

    triton_rows.rms_norm(bare(MANY, hidden, dtype=dtype), bare(hidden, dtype=FULL), 1e-6)
    triton_rows.gated_product(bare(MANY, 2 * inner, dtype=dtype))


def glance(rows: int) -> None:
    """A look at logits."""
    from foveate.ops import triton_rows

    triton_rows.glance(bare(rows, VOCAB, dtype=FULL))


def cos_sin(dtype: torch.dtype) -> None:
    """Angles of many positions."""
    from foveate.ops import triton_rows

    triton_rows.cos_sin(bare(3, MANY, dtype=dtype), bare(TURNED, dtype=FULL), bare(TURNED, dtype=torch.int64))


def eight_bits(*shape: int) -> tuple[Tensor, Tensor]:
    """A matrix in blocks of 128, and its scales."""
    return bare(*shape, dtype=torch.float8_e4m3fn), bare(*shape[:-1], shape[-1] // 128, dtype=FULL)


def fp8_project(outs: int, ins: int, tokens: int, dtype: torch.dtype) -> None:
    """Few rows times an 8-bit matrix, which is then unpacked as for many rows."""
    from foveate.ops import triton_fp8

    matrix = eight_bits(outs, ins)
    triton_fp8.project(bare(tokens, ins, dtype=dtype), *matrix, 128)
    triton_fp8.unpack(*matrix, 128, dtype)


def fp8_experts(outs: int, ins: int, dtype: torch.dtype) -> None:
    """Rows times the eight experts that each chose of 256, and all of these unpacked."""
    from foveate.ops import triton_fp8

    matrices = eight_bits(256, outs, ins)
    triton_fp8.project_chosen(bare(64, ins, dtype=dtype), *matrices, 128, bare(512, dtype=torch.int64))
    triton_fp8.unpack(*matrices, 128, dtype)


def linear(kind: str, ins: int, outs: int, rows: int, dtype: torch.dtype) -> None:
    """Few rows times a matrix, with what stands around the product in a layer."""
    from foveate.ops import triton_linear

    x, weight, norm = bare(rows, ins, dtype=dtype), bare(outs, ins, dtype=dtype).T, Norm(bare(ins, dtype=FULL), 1e-6)
    if kind == "add":
        triton_linear.add_projected(bare(rows, outs, dtype=dtype), x, weight)
    else:
        function = {"project": triton_linear.project, "gated": triton_linear.project_gated}[kind]
        function(x, weight, norm)


def _attention() -> Iterator[tuple[str, Callable[[], None]]]:
    few = [(heads, kv, width, HALF) for width in (33, 17, 5, 1) for heads, kv in ((16, 4), (24, 4), (16, 2), (32, 2))]
    few += [(16, 4, 17, FULL), (32, 2, 17, FULL)]
    for heads, kv, width, dtype in few:
        yield f"attend {heads}/{kv} width {width}{_said(dtype)}", partial(attend_few, heads, kv, width, dtype)
    for count in (1, 64):
        yield f"attend 24/4 width 1, {count} lanes", partial(attend_few, 24, 4, 1, HALF, count)
    for heads, kv, dtype in ((16, 4, HALF), (24, 4, HALF), (16, 2, HALF), (32, 2, HALF), (24, 4, FULL)):
        yield f"attend runs {heads}/{kv}{_said(dtype)}", partial(attend_many, heads, kv, dtype)
    for heads, kv, tokens, dtype in ((16, 4, 8, HALF), (24, 4, MANY, HALF), (32, 2, MANY, HALF), (24, 4, MANY, FULL)):
        yield f"place {heads}/{kv}, {tokens} tokens{_said(dtype)}", partial(place, heads, kv, tokens, dtype)


def _recurrent() -> Iterator[tuple[str, Callable[[], None]]]:
    for heads, dtype in ((32, HALF), (48, HALF), (48, FULL)):
        yield f"delta runs 16/{heads}{_said(dtype)}", partial(delta_many, heads, dtype)
        for width in (5, 1):
            yield f"delta 16/{heads} width {width}{_said(dtype)}", partial(delta_few, heads, width, dtype)


def _rows() -> Iterator[tuple[str, Callable[[], None]]]:
    for hidden, inner, dtype in ((2560, 9216, HALF), (5120, 17408, HALF), (5120, 17408, FULL)):
        yield f"norm {hidden}, gated product {inner}{_said(dtype)}", partial(rows_of, hidden, inner, dtype)
    for rows in (1, 64):
        yield f"glance, {rows} rows", partial(glance, rows)
    for kind in (torch.int32, torch.int64):
        yield f"cos_sin of {kind}".replace("torch.", ""), partial(cos_sin, kind)


def _products() -> Iterator[tuple[str, Callable[[], None]]]:
    shapes = [("project", 2560, 12352), ("project", 5120, 16480), ("project", 2560, VOCAB), ("gated", 2560, 18432)]
    shapes += [("gated", 5120, 34816), ("add", 9216, 2560), ("add", 17408, 5120)]
    cases = [(*shape, rows, HALF) for shape in shapes for rows in (1, 2, 16)]
    cases += [("project", 2560, 12352, 16, FULL), ("gated", 5120, 34816, 16, FULL), ("add", 17408, 5120, 1, FULL)]
    for kind, ins, outs, rows, dtype in cases:
        yield f"linear {kind} {ins} to {outs}, {rows} rows{_said(dtype)}", partial(linear, kind, ins, outs, rows, dtype)
    for ins, outs, rows, dtype in ((2560, 18432, 1, HALF), (17408, 5120, 16, HALF), (5120, 34816, 64, HALF),
                                   (17408, 5120, 64, FULL)):  # fmt: skip
        yield f"fp8 {ins} to {outs}, {rows} rows{_said(dtype)}", partial(fp8_project, outs, ins, rows, dtype)
    for ins, outs, dtype in ((2048, 1024, HALF), (512, 2048, HALF), (2048, 1024, FULL)):
        yield f"fp8 experts {ins} to {outs}{_said(dtype)}", partial(fp8_experts, outs, ins, dtype)


def _said(dtype: torch.dtype) -> str:
    return ", float32" if dtype == FULL else ""


# The slow ones first, so that no worker is left with one when the other is done.
LAUNCHES: dict[str, Callable[[], None]] = dict((*_attention(), *_recurrent(), *_products(), *_rows()))


def main(names: list[str]) -> int:
    """Compile these, or all, in two workers; 1 if any failed or does not fit."""
    if os.environ.get("TRITON_INTERPRET"):
        raise SystemExit("kernels are interpreted here: unset TRITON_INTERPRET")
    if reason := missing():
        raise SystemExit(reason)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # nothing compiled earlier is taken for what is compiled now
        # Forked workers see what a test has changed in a kernel's module.
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as workers:
            good = True
            for report in workers.map(compiled, names or LAUNCHES):
                print(json.dumps(asdict(report)), flush=True)
                good = good and not report.error and not report.misfits
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
